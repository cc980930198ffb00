from pathlib import Path

import pytest

from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.replay_serve import ReplayServeSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.rendezvous import Announcement


@pytest.mark.parametrize("kind", [ServingSettings, ReplayServeSettings])
def test_every_server_announces_itself_in_a_file(kind: type[ServingSettings], tmp_path: Path):
    assert kind().announcement() is None
    file = tmp_path / "server.address"
    settings = kind(address_file=file, advertised_host="node7", tls_server_name="learner")
    assert settings.announcement() == Announcement(file, "node7", "learner")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"advertised_host": "node7"}, "--advertised-host: 'node7' is given without --address-file"),
        ({"tls_server_name": "learner"}, "--tls-server-name: 'learner' is given without --address-file"),
        ({"address_file": Path("nowhere/at/all")}, "there is no folder 'nowhere/at'; expected one that exists"),
    ],
)
def test_what_no_client_would_find_is_refused(given: dict[str, object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        ServingSettings(**given).announcement()
