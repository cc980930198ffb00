"""The shipped parts: the wheel, the editable install, the images' recipes."""

import importlib
import re
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

from tests.packages import build
from tests.processes import SOURCE_ROOTS
from tests.release import NotReleasableError, check_changelog, description_of, relative_links

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = build("wheel", tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return HeaderParser().parsestr(wheel.read(name).decode())


def test_make_train_installs_what_a_newcomer_tries_next():
    (installed,) = re.findall(
        r"^\$\(VENV\)/\.runtime:.*\n.*'\.\[(.*)\]'", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert {"learner", "dashboard", "plot", "video"} <= set(installed.split(","))


class TestWheel:
    def test_every_module_of_the_sources(self, wheel):
        sources = {
            path.relative_to(root).as_posix() for root in SOURCE_ROOTS for path in (root / "rollcast").rglob("*.py")
        }
        assert {name for name in wheel.namelist() if name.endswith(".py")} == sources

    def test_only_what_python_and_protoc_read_and_the_page_of_the_dashboard(self, wheel):
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
        page = {name for name in names if name.startswith("rollcast/tools/dashboard/") and not name.endswith(".py")}
        assert {Path(name).name for name in page} == {"lanes.js", "events.js", "style.css", "icon.svg"}
        files = [Path(name) for name in names if name not in page]
        assert {path.suffix for path in files if path.name != "py.typed"} == {".py", ".pyi", ".proto", ".yaml"}

    def test_fits_every_system(self, wheel, metadata):
        assert Path(wheel.filename).name.endswith("-py3-none-any.whl")
        (tags,) = [name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL")]
        assert "Root-Is-Purelib: true\nTag: py3-none-any\n" in wheel.read(tags).decode()

    def test_every_recipe(self, wheel):
        recipes = {f"rollcast/services/recipes/{path.name}" for path in (ROOT / "recipes").iterdir()}
        assert {name for name in wheel.namelist() if name.endswith(".yaml")} == recipes

    @pytest.mark.parametrize("package", ["v1", "services", "actor", "learner", "tools"])
    def test_is_typed(self, wheel, package):
        assert f"rollcast/{package}/py.typed" in wheel.namelist()

    def test_stubs_lie_beside_their_protos(self, wheel):
        names = set(wheel.namelist())
        protos = [name for name in names if name.endswith(".proto")]
        assert protos
        for proto in protos:
            assert proto.startswith(("rollcast/v1/", "rollcast/keda/"))
            assert {proto.replace(".proto", "_pb2.py"), proto.replace(".proto", "_pb2.pyi")} <= names

    def test_console_script_and_licence(self, wheel, metadata):
        (entry_points,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
        assert "rollcast = rollcast.learner.__main__:main" in wheel.read(entry_points).decode()
        (licence,) = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert metadata["License-Expression"] == "Apache-2.0"


CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- x\n\n## [0.2.0] - 2027-01-31\n\n## [0.1.0] - 2026-11-26\n"


class TestRelease:
    def test_version_and_changelog_agree(self):
        check_changelog(PYPROJECT["project"]["version"], (ROOT / "CHANGELOG.md").read_text())

    @pytest.mark.parametrize("version", ["0.2.0", "0.3.0.dev0"])
    def test_a_version_with_its_section_can_be_released(self, version):
        check_changelog(version, CHANGELOG)

    @pytest.mark.parametrize(
        ("version", "changelog", "reason"),
        [
            ("0.3.0", CHANGELOG, r"no section .*0\.3\.0"),
            ("0.2.0.dev0", CHANGELOG, "has released 0.2.0"),
            ("0.2.0", CHANGELOG.replace(" - 2027-01-31", ""), "no date for 0.2.0"),
            ("0.2.0", CHANGELOG.replace("## [Unreleased]", ""), "Unreleased"),
        ],
    )
    def test_says_what_the_changelog_lacks(self, version, changelog, reason):
        with pytest.raises(NotReleasableError, match=reason):
            check_changelog(version, changelog)

    def test_an_index_can_show_who_made_it_where_it_is_and_what_it_runs_on(self, metadata):
        assert metadata["Author"]
        urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
        assert {"Repository", "Documentation", "Changelog", "Issues"} <= urls.keys()
        assert all(url.startswith(urls["Repository"]) for url in urls.values())
        classifiers = metadata.get_all("Classifier")
        tested = re.search(r"STAGES:-(.*)}", (ROOT / ".ci" / "run").read_text())[1]
        for python in re.findall(r"light-(\d\.\d+)", tested):
            assert f"Programming Language :: Python :: {python}" in classifiers

    def test_the_readme_has_no_relative_link(self, wheel, metadata):
        readme = description_of(Path(wheel.filename))
        assert "# rollcast" in readme
        assert relative_links(readme) == []
        (repository,) = [line for line in metadata.get_all("Project-URL") if line.startswith("Repository, ")]
        links = re.findall(r"\]\((https://github\.com/[^)]+)\)", readme)
        assert links
        assert all(link.startswith(f"{repository.partition(', ')[2]}/") for link in links)

    @pytest.mark.parametrize(
        "link", ["[a](docs/a.md)", "![a](a.svg)", '<img src="a.svg">', '<source srcset="a.svg">', '<a href="a.md">']
    )
    def test_relative_links_of_all_kinds_are_found(self, link):
        assert len(relative_links(f"see {link}, [b](https://example.org) and [c](#c)")) == 1

    def test_absolute_links_lead_to_files_of_this_tree(self, wheel):
        base = re.compile(
            r"https://(?:github\.com/rollcast/rollcast/blob|raw\.githubusercontent\.com/rollcast/rollcast)/main/"
        )
        for link in re.findall(r"https://[^)\"\s]+", description_of(Path(wheel.filename))):
            if base.match(link):
                assert (ROOT / base.sub("", link).partition("#")[0]).exists(), link

    @pytest.mark.parametrize(
        "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
    )
    def test_issue_templates_are_forms(self, path):
        form = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all(part["type"] in {"markdown", "textarea", "input"} for part in form["body"])
        assert not set(re.findall(r"https://github\.com/\S+?(?=/blob|$)", path.read_text())) - {
            PYPROJECT["project"]["urls"]["Repository"]
        }

    @pytest.mark.parametrize("page", ["CONTRIBUTING.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md"])
    def test_links_of_its_pages_lead_somewhere(self, page):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
            assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target


class TestSourceDistribution:
    def test_holds_the_sources_and_makes_the_same_wheel(self, wheel, tmp_path):
        with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
            archive.extractall(tmp_path, filter="data")
        (folder,) = tmp_path.glob("rollcast-*")
        described = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"}
        assert {path.name for path in folder.iterdir()} == {root.name for root in SOURCE_ROOTS} | {
            "recipes"
        } | described
        with zipfile.ZipFile(build("wheel", tmp_path / "wheel", folder)) as again:
            assert sorted(again.namelist()) == sorted(wheel.namelist())


class TestEditableInstall:
    @pytest.mark.parametrize(
        "module", ["rollcast.v1.rollout_pb2", "rollcast.services", "rollcast.actor", "rollcast.learner"]
    )
    def test_imports_come_from_this_tree(self, module):
        assert Path(importlib.import_module(module).__file__).is_relative_to(ROOT)

    @pytest.mark.parametrize("root", SOURCE_ROOTS, ids=lambda root: root.name)
    def test_every_root_stays_open_to_the_others(self, root):
        # an __init__.py would close the namespace, or make `import actor` ours, which is every second project's
        assert not (root / "__init__.py").exists()
        assert not (root / "rollcast" / "__init__.py").exists()


def _distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


class TestDependencies:
    REQUIRED = _distributions(PYPROJECT["project"]["dependencies"])
    EXTRAS = PYPROJECT["project"]["optional-dependencies"].values()
    OF_EXTRAS = _distributions([line for extra in EXTRAS for line in extra]) - {"rollcast"}

    def test_the_tools_repeat_nothing_that_the_package_names(self):
        groups = PYPROJECT["dependency-groups"]
        tools = groups["test"] + [line for line in groups["dev"] if isinstance(line, str)]
        assert not _distributions(tools) & (self.REQUIRED | self.OF_EXTRAS)

    def test_every_dependency_is_pinned_for_ci(self):
        pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
        assert _distributions(pins) >= self.REQUIRED | self.OF_EXTRAS


class TestDockerfiles:
    @pytest.fixture(params=["actor", "learner"])
    def dockerfile(self, request):
        return (ROOT / request.param / "Dockerfile").read_text()

    def test_the_two_images_share_their_first_layers(self):
        def shared(component):
            text = (ROOT / component / "Dockerfile").read_text()
            return text[text.index("# Everything down to") : text.index("# shared so far")]

        assert shared("actor") == shared("learner")

    def test_runs_as_nobody_special_and_says_how_it_is(self, dockerfile):
        last_stage = dockerfile[dockerfile.rindex("\nFROM ") :]
        assert re.findall(r"^USER (.*)", last_stage, re.MULTILINE)[-1] == "rollcast"
        assert "HEALTHCHECK" in last_stage
        # exec form: a shell in between would keep SIGTERM to itself
        assert re.search(r'^ENTRYPOINT \["', last_stage, re.MULTILINE)

    def test_torch_is_installed_before_what_depends_on_it(self, dockerfile):
        torch, extras = dockerfile.index("-c /opt/constraints.txt torch \\"), dockerfile.index("[$EXTRAS]")
        assert torch < extras

    @pytest.mark.parametrize(("component", "extras"), [("actor", ""), ("learner", "torch")])
    def test_only_the_learner_has_torch_by_default(self, component, extras):
        assert f"\nARG EXTRAS={extras}\n" in (ROOT / component / "Dockerfile").read_text()

    def test_every_version_is_that_of_the_constraints(self, dockerfile):
        for install in re.findall(r"pip install .*", dockerfile):
            assert "-c /opt/constraints.txt" in install or "--no-deps" in install or "my-environments" in install
