"""Settings of services and the models file: the border where configuration is read and checked."""

from omnistage.config.checkpoints import locate_checkpoint
from omnistage.config.hub import Download, NotDownloaded, is_hub_id
from omnistage.config.models_file import (
    EngineSpec,
    ModelsFile,
    ModelSpec,
    default_models_path,
    load_models,
    read_models,
)
from omnistage.config.settings import ServiceSettings, load_settings
from omnistage.config.threads import limit_threads

__all__ = [
    "Download",
    "EngineSpec",
    "ModelSpec",
    "ModelsFile",
    "NotDownloaded",
    "ServiceSettings",
    "default_models_path",
    "is_hub_id",
    "limit_threads",
    "load_models",
    "load_settings",
    "locate_checkpoint",
    "read_models",
]
