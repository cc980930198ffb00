"""Decoders of the files that people and machines put beside a run: settings, tokens, certificates, metrics."""

from pathlib import Path
from random import Random

from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.security.security import ClientSecurity, ServerTls
from rollcast.services.security.tokens import Role, TokenFile
from rollcast.tools.certificates import make_certificates
from tests.fuzz.byte_mutator import mutate_bytes
from tests.fuzz.file_mutators import mutate_json, pieces_mutator, text_mutator
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import Target


def run_settings(folder: Path) -> Target:
    """The settings of a run that is resumed."""
    run = RunDirectory(folder)
    given = TrainSettings.model_validate({"resume": str(folder)})
    seeds = []
    for algorithm in ("impala", "dqn"):
        values = {"algorithm": algorithm, "run_dir": str(folder), "hidden_sizes": [8], "replay": {"capacity": 9}}
        settings = TrainSettings.model_validate(values)
        # what nobody has set is left out: changes are of what there is
        run.write_settings(settings.model_dump(mode="json", exclude={"resume"}, exclude_unset=True))
        seeds.append(run.settings_path.read_bytes())

    def decode(content: bytes) -> TrainSettings:
        run.settings_path.write_bytes(content)
        return TrainSettings.resumed(given, given)

    return Target(
        name="run settings",
        decode=decode,
        seeds=tuple(seeds),
        mutate=text_mutator(seeds),
        limit_bytes=4 << 20,  # PyYAML's tokens, events and nodes, and the settings' own defaults
        bytes_per_byte=2048,
        max_length=1 << 11,
    )


def tokens(folder: Path) -> Target:
    """The tokens of a learner."""
    seeds = (
        b"# comment\n\nactor:" + b"a" * 32 + b"\nviewer:" + b"v" * 16 + b"\noperator:" + b"o" * 64 + b"\n",
        b"operator:!-~" + b"x" * 20,
    )
    path = folder / "tokens"
    path.touch(mode=0o600)

    def decode(content: bytes) -> Role | None:
        path.write_bytes(content)
        return TokenFile(path).role_of("a" * 32)

    return Target(name="tokens", decode=decode, seeds=seeds, mutate=text_mutator(seeds), bytes_per_byte=64)


def certificates(folder: Path) -> Target:
    """A certificate, its key, and authorities."""
    made = folder / "made"
    make_certificates(made)
    seeds = tuple(
        join_pieces((made / name).read_bytes() for name in names)
        for names in (("server.pem", "server.key", "ca.pem"), ("actor.pem", "actor.key", "ca.pem"))
    )
    cert, key, authority = (folder / name for name in ("cert", "key", "authority"))

    def decode(content: bytes) -> None:
        pieces = [*split_pieces(content), b"", b"", b""]
        for path, piece in zip((cert, key, authority), pieces, strict=False):
            path.write_bytes(piece)
        ServerTls(cert=cert, key=key, client_ca=authority).check()
        ClientSecurity(tls_ca=authority, tls_cert=cert, tls_key=key).check_files()

    return Target(
        name="certificates",
        decode=decode,
        seeds=seeds,
        mutate=pieces_mutator(lambda place: mutate_bytes),
    )


def metrics(folder: Path) -> Target:
    """The records of a run that is resumed, of which it drops the last."""
    run = RunDirectory(folder)
    seed = b'{"env_steps": 3, "loss": 0.5}\n{"env_steps": 9, "loss": null}\n{"env_ste'

    def decode(content: bytes) -> None:
        run.metrics_path.write_bytes(content)
        run.cut_metrics(5)

    lines = text_mutator((seed,))

    def mutate(content: bytes, rng: Random) -> bytes:
        if rng.random() < 0.5:
            return lines(content, rng)
        first, _, rest = content.partition(b"\n")
        return mutate_json(first, rng) + b"\n" + rest

    return Target(name="metrics", decode=decode, seeds=(seed,), mutate=mutate, bytes_per_byte=256)
