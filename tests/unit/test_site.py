"""The documentation's site: links between pages of the repository lead to pages of the site."""

import pytest

from docs import site


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "docs/reference/protocol.md#recordings", "reference/protocol.md#recordings"),
        ("README.md", "examples/own_network.py", "files/examples/own_network.py.md"),
        ("README.md", "proto/rollcast/v1", "files/proto/rollcast/v1/index.md"),
        ("README.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("docs/howto/secure.md", "#tls", "#tls"),
        ("docs/howto/secure.md", "../reference/limits.md", "../reference/limits.md"),
        ("docs/howto/secure.md", "../../README.md#speed", "../readme.md#speed"),
        ("docs/howto/secure.md", "../../benchmarks/soak.svg", "../files/benchmarks/soak.svg"),
        ("benchmarks/README.md", "../docs/development/chaos.md", "../development/chaos.md"),
        ("benchmarks/README.md", "speed.svg", "../files/benchmarks/speed.svg"),
        ("benchmarks/README.md", "pages/ingest.md", "ingest.md"),
        ("benchmarks/pages/memory.md", "../soak.svg", "../files/benchmarks/soak.svg"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, link: str, expected: str):
    assert site.with_links(f"see [this]({link}) and", source) == f"see [this]({expected}) and"


def test_fenced_blocks_stay_as_they_are():
    text = (
        "[a](docs/development/chaos.md)\n```md\n[a](docs/development/chaos.md)\n```\n[b](docs/development/chaos.md)\n"
    )
    assert (
        site.with_links(text, "README.md")
        == "[a](development/chaos.md)\n```md\n[a](docs/development/chaos.md)\n```\n[b](development/chaos.md)\n"
    )


def test_folder_is_shown_file_by_file():
    page = site.page_of_files("proto/rollcast/v1")
    assert "\n## policy.proto\n\n````protobuf\n" in page
    assert "_pb2" not in "".join(line for line in page.splitlines() if line.startswith("## "))


def test_reference_lists_every_exported_name():
    page = site.page_of_package("learner")
    assert "\n::: rollcast.learner.Impala\n" in page


def test_each_module_is_listed_with_the_first_line_of_its_docstring():
    page = site.page_of_modules()
    services = page.partition("\n## services\n")[2].partition("\n## actor\n")[0]
    assert "\n| `address` | " in services
    first = services.index("| `policies/policies` | Defines a policy")
    assert services[first:].partition("\n")[2].startswith("| `policies/relayed` | "), "__init__ is none"
    assert "| \n" not in page, "no module is without a first line"


def test_each_command_has_its_whole_help():
    page = site.page_of_commands()
    replay = page.partition("\n## rollcast replay serve\n")[2].partition("\n## ")[0]
    assert replay.startswith("\n````text\nusage: rollcast replay serve")
    train = page.partition("\n## rollcast train\n")[2].partition("\n## ")[0]
    assert "--ppo.learning-rate" in train
    sac = page.partition("\n## rollcast train --algorithm sac\n")[2].partition("\n## ")[0]
    assert "--sac.learn-temperature" in sac
