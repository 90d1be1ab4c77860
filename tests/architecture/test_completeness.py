"""Every package has what a package must have, and every tool reads the same list of packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from omnistage.observability import names

if TYPE_CHECKING:
    from tests.architecture.conftest import Source

ROOMS = ("__main__.py", "settings.py", "bootstrap.py", "handlers.py", "engine/__init__.py", "models/__init__.py")
GATEWAY_ROOMS = (
    "__main__.py",
    "settings.py",
    "bootstrap.py",
    "translate.py",
    "routers/__init__.py",
    "schemas/__init__.py",
)


def _toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def test_the_list_of_packages_is_complete(root: Path, packages: list[str]) -> None:
    found = {path.parent.relative_to(root).as_posix() for path in root.glob("*/pyproject.toml")}
    found |= {path.parent.relative_to(root).as_posix() for path in root.glob("services/*/pyproject.toml")}
    assert set(packages) == found


def test_tools_read_the_same_list(root: Path, packages: list[str]) -> None:
    tools = _toml(root / "pyproject.toml")["tool"]
    roots = [f"{package}/src" for package in packages]
    assert tools["ruff"]["src"] == roots
    assert tools["mypy"]["mypy_path"] == roots
    assert tools["pytest"]["ini_options"]["testpaths"] == [*(f"{package}/tests" for package in packages), "tests"]
    imports = [next((root / package / "src").iterdir()).name for package in packages]
    assert tools["importlinter"]["root_packages"] == imports


def test_each_package_is_whole(root: Path, packages: list[str]) -> None:
    missing = [
        f"{package}/{name}"
        for package in packages
        for name in ("README.md", "CHANGELOG.md", "pyproject.toml", "tests")
        if not (root / package / name).exists()
    ]
    assert missing == []


def test_each_package_has_one_name_and_cannot_be_uploaded(root: Path, packages: list[str]) -> None:
    for package in packages:
        project = _toml(root / package / "pyproject.toml")["project"]
        name = Path(package).name
        expected = "omnistage" if package == "shared" else f"omnistage-{name}"
        assert project["name"] == expected
        assert "Private :: Do Not Upload" in project["classifiers"]
        folders = [path.name for path in (root / package / "src").iterdir() if path.is_dir() and "." not in path.name]
        assert folders == [expected.replace("-", "_")]
        assert (root / package / "src" / folders[0] / "py.typed").exists()
        changelog = (root / package / "CHANGELOG.md").read_text(encoding="utf-8")
        assert f"## {project['version']}" in changelog, f"{package}: the changelog lacks {project['version']}"


def test_services_depend_on_a_range_of_shared(root: Path, services: list[str]) -> None:
    version = _toml(root / "shared" / "pyproject.toml")["project"]["version"]
    major, minor = (int(part) for part in version.split(".")[:2])
    wanted = re.compile(rf"omnistage(\[[a-z,]+\])?>={major}\.{minor}(\.\d+)?,<{major}\.{minor + 1}")
    for service in services:
        dependencies = _toml(root / "services" / service / "pyproject.toml")["project"]["dependencies"]
        assert any(wanted.fullmatch(dependency) for dependency in dependencies), service
        ours = [name for name in dependencies if name.startswith("omnistage")]
        assert len(ours) == 1, f"{service} depends on another service"


def test_each_service_has_the_same_rooms(root: Path, services: list[str]) -> None:
    missing = [
        f"{service}/{room}"
        for service in services
        for room in (GATEWAY_ROOMS if service == "gateway" else ROOMS)
        if not (root / "services" / service / "src" / f"omnistage_{service}" / room).exists()
    ]
    assert missing == []


def test_each_service_can_be_deployed(root: Path, services: list[str]) -> None:
    compose = yaml.safe_load((root / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services:
        dockerfile = (root / "services" / service / "Dockerfile").read_text(encoding="utf-8")
        assert f"./services/{service}" in dockerfile
        assert f"omnistage_{service}" in dockerfile
        others = [other for other in services if other != service and f"services/{other}" in dockerfile]
        assert others == [], f"the image of {service} contains {others}"
        assert compose[service]["build"]["dockerfile"] == f"services/{service}/Dockerfile"


def test_readmes_describe_their_package(root: Path, packages: list[str]) -> None:
    short = [
        package for package in packages if len((root / package / "README.md").read_text(encoding="utf-8").split()) < 60
    ]
    assert short == []


def test_everything_in_the_registry_of_names_is_recorded(product: list[Source]) -> None:
    code = "".join(source.text for source in product if source.path.name != "names.py")
    registered = [key for key, value in vars(names).items() if isinstance(value, names.Metric)]
    registered += [key for key in vars(names) if key.startswith(("SPAN_", "ATTR_"))]
    assert len(registered) > 50
    assert [key for key in registered if not re.search(rf"\bnames\.{key}\b", code)] == []
