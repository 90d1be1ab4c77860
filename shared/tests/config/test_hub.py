"""Checkpoints of a model hub: which files come, where they lie, and what is said when they do not come."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from omnistage.config import Download, NotDownloaded, is_hub_id, locate_checkpoint
from omnistage.errors import ConfigError

WEIGHTS = bytes(range(256)) * 64
COMMIT = "c" * 40
OLDER = "a" * 40
REPOSITORY = "maker/voice-0.6b"
FILES = {
    COMMIT: {
        "config.json": b'{"of": "main"}',
        "model-00001-of-00002.safetensors": WEIGHTS,
        "speech_tokenizer/config.json": b"{}",
        "speech_tokenizer/model.safetensors": WEIGHTS[::-1],
        "merges.txt": b"a b\n",
        "pytorch_model.bin": b"a pickle",
        "modeling.py": b"raise SystemExit",
        "README.md": b"# A voice",
    },
    OLDER: {"config.json": b'{"of": "an older one"}'},
}
WANTED = {
    "config.json", "model-00001-of-00002.safetensors", "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors", "merges.txt",
}  # fmt: skip
REVISIONS = {"main": COMMIT, "v1.0": OLDER, COMMIT: COMMIT, OLDER: OLDER}


class Hub(ThreadingHTTPServer):
    """As much of a hub as a download asks for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[str] = []
        self.refusal: tuple[int, str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if self.server.refusal is not None:
            status, code = self.server.refusal
            self._send(b"{}", status, {"X-Error-Code": code})
        elif path.startswith(f"/api/models/{REPOSITORY}/"):
            self._about(*path.removeprefix(f"/api/models/{REPOSITORY}/").split("/", 1))
        elif path.startswith(f"/{REPOSITORY}/resolve/"):
            commit, _, name = path.removeprefix(f"/{REPOSITORY}/resolve/").partition("/")
            body = FILES[commit][name]
            self._send(body, 200, {"ETag": f'"{_blob(body)}"', "X-Repo-Commit": commit})
        else:
            self._send(b"{}", 404, {"X-Error-Code": "RepoNotFound"})

    def _about(self, what: str, revision: str) -> None:
        if revision not in REVISIONS:
            self._send(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
            return
        commit = REVISIONS[revision]
        told: Any = {"id": REPOSITORY, "sha": commit, "siblings": []}
        if what == "tree":
            told = [
                {"type": "file", "path": name, "size": len(body), "oid": _blob(body)}
                for name, body in FILES[commit].items()
            ]
        self._send(json.dumps(told).encode(), 200, {"Content-Type": "application/json"})

    def _send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _blob(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    files_at = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files_at)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("OMNISTAGE_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("OMNISTAGE_OFFLINE", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_weights_and_configurations_are_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    folder = locate_checkpoint(f"hub:{REPOSITORY}")
    assert folder.is_relative_to(tmp_path / "hub")
    assert files(folder) == {name: body for name, body in FILES[COMMIT].items() if name in WANTED}
    hub.asked.clear()
    assert locate_checkpoint(f"hub:{REPOSITORY}@main") == folder
    assert locate_checkpoint(f"hub:{REPOSITORY}@{COMMIT}") == folder
    assert hub.asked == []


@pytest.mark.parametrize("revision", ["v1.0", OLDER])
def test_a_revision_is_another_checkpoint(hub: Hub, revision: str) -> None:
    newest = locate_checkpoint(f"hub:{REPOSITORY}")
    older = locate_checkpoint(f"hub:{REPOSITORY}@{revision}")
    assert files(older) == FILES[OLDER]
    assert files(newest)["config.json"] == FILES[COMMIT]["config.json"]


def test_what_is_here_is_found_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = locate_checkpoint(f"hub:{REPOSITORY}")
    monkeypatch.setenv("OMNISTAGE_OFFLINE", "1")
    hub.refusal = (503, "")
    assert locate_checkpoint(f"hub:{REPOSITORY}") == folder
    with pytest.raises(ConfigError, match=r"v1\.0: it is not in the cache .*hub, and OMNISTAGE_OFFLINE is set"):
        locate_checkpoint(f"hub:{REPOSITORY}@v1.0")


def test_half_a_snapshot_is_not_taken_for_a_whole_one(hub: Hub) -> None:
    folder = locate_checkpoint(f"hub:{REPOSITORY}")
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(NotDownloaded):
        locate_checkpoint(f"hub:{REPOSITORY}", None)
    assert set(files(locate_checkpoint(f"hub:{REPOSITORY}"))) == WANTED


def test_a_look_downloads_nothing(hub: Hub) -> None:
    with pytest.raises(NotDownloaded, match=r"it is not in the cache .* yet"):
        locate_checkpoint(f"hub:{REPOSITORY}", None)
    assert hub.asked == []


def test_the_bytes_are_counted_as_they_come(hub: Hub) -> None:
    told: list[tuple[int, int]] = []
    locate_checkpoint(f"hub:{REPOSITORY}", Download(lambda done, total: told.append((done, total))))
    size = sum(len(body) for name, body in FILES[COMMIT].items() if name in WANTED)
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_stopped_download_ends_and_is_no_checkpoint(hub: Hub) -> None:
    download = Download(lambda _done, _total: download.stop())
    with pytest.raises(ConfigError, match="cannot be downloaded: stopped"):
        locate_checkpoint(f"hub:{REPOSITORY}", download)
    with pytest.raises(NotDownloaded):
        locate_checkpoint(f"hub:{REPOSITORY}", None)


@pytest.mark.parametrize(
    ("name", "refusal", "fault"),
    [
        ("nobody/nothing", None, "there is no such repository, or HF_TOKEN is no token"),
        (f"{REPOSITORY}@gone", None, "the repository has no such revision"),
        (REPOSITORY, (403, "GatedRepo"), "its owner must grant access"),
        (REPOSITORY, (401, ""), "HfHubHTTPError: Client error '401 Unauthorized'"),
        (REPOSITORY, (410, ""), "410"),
    ],
)
def test_what_is_not_to_be_had_says_why(hub: Hub, name: str, refusal: tuple[int, str] | None, fault: str) -> None:
    hub.refusal = refusal
    with pytest.raises(ConfigError) as caught:
        locate_checkpoint(f"hub:{name}")
    assert caught.value.message.startswith(f"checkpoint hub:{name}: cannot be downloaded: ")
    assert fault in caught.value.message
    assert "\n" not in caught.value.message


def test_a_hub_that_is_not_reached_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="cannot be downloaded: ConnectError"):
        locate_checkpoint(f"hub:{REPOSITORY}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot be downloaded: HF_HUB_OFFLINE is set"):
        locate_checkpoint(f"hub:{REPOSITORY}")


def test_a_repository_without_weights_is_no_checkpoint(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, OLDER, {"model.bin": b"a pickle"})
    with pytest.raises(ConfigError, match=r"has none of \*\.safetensors"):
        locate_checkpoint(f"hub:{REPOSITORY}@v1.0")


@pytest.mark.parametrize(
    "name",
    ["", "voice", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a/b@x/../../y", "a/b@-x", "a b/c", "a/b\n", "/a/b",
     "a/b@x y", "https://a/b", "a/" + "b" * 97],
)  # fmt: skip
def test_names_that_mean_nothing_are_refused(hub: Hub, name: str) -> None:
    assert is_hub_id(f"hub:{name}")
    with pytest.raises(ConfigError, match="expected hub:ORGANISATION/NAME@REVISION"):
        locate_checkpoint(f"hub:{name}")
    assert hub.asked == []


def test_a_wrong_setting_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNISTAGE_OFFLINE", "perhaps")
    with pytest.raises(ConfigError, match="wrong settings: OMNISTAGE_OFFLINE"):
        locate_checkpoint(f"hub:{REPOSITORY}")


def test_without_the_library_it_says_how_to_get_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs the package huggingface_hub \(pip install 'omnistage\[hub\]'\)"):
        locate_checkpoint(f"hub:{REPOSITORY}")


def test_the_library_is_loaded_when_it_is_needed_and_reads_its_own_settings(hub: Hub, tmp_path: Path) -> None:
    program = f"""
import sys
from omnistage.config import locate_checkpoint
assert "huggingface_hub" not in sys.modules
print(locate_checkpoint("hub:{REPOSITORY}@v1.0"))
"""
    environment = os.environ | {"HF_ENDPOINT": hub.address, "OMNISTAGE_HUB_CACHE": str(tmp_path / "other")}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert files(Path(ran.stdout.strip())) == FILES[OLDER]
