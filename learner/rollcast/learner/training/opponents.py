"""Keeps the opponents of evaluations, and rates policies by their games against these opponents."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rollcast.actor.playing.evaluate import Evaluation
from rollcast.learner.disk import write_whole
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import MAX_EVALUATORS
from rollcast.services.policies.policies import PolicySpec, PolicyState, SavedPolicy
from rollcast.services.policies.saved import encode_saved_policy, read_saved_policy

logger = logging.getLogger(__name__)

# The opponent that draws its actions evenly. Its rating is 0, and all others are relative to it.
RANDOM: Final = 0

# Elo, "The Rating of Chessplayers, Past and Present" (1978): expected score 1 / (1 + 10^(-d / 400)) at d points more.
_POINTS_PER_E: Final = 400 / math.log(10)  # of the slope of that
# The bounds of ratings: a difference of ten thousand points wins all but one of 10^25 games.
_HIGHEST: Final = 1e4
_NORMAL_975: Final = 1.96


class Rating(NamedTuple):
    """A rating, in points of Elo's scale.

    Attributes:
        value: The rating whose expected score equals the actual score.
        low: The lower end of its 95 % confidence interval, from the games' Fisher information.
        high: The upper end.
    """

    value: float
    low: float
    high: float


def rate(games: Mapping[float, Sequence[float]]) -> Rating:
    """Returns a player's rating by maximum likelihood, from games against opponents with known ratings.

    Each opponent counts as if it had drawn one more game, so that a rating stays finite after only wins.

    Args:
        games: By the opponent's rating, the score of each game: 1 won, 0.5 drawn, 0 lost.
    """
    n_games = {theirs: len(scores) + 1 for theirs, scores in games.items()}
    score = sum(sum(scores) + 0.5 for scores in games.values())
    low, high = -_HIGHEST, _HIGHEST
    for _ in range(60):
        middle = (low + high) / 2
        expected = sum(n * _expected(middle - theirs) for theirs, n in n_games.items())
        low, high = (middle, high) if expected < score else (low, middle)
    value = (low + high) / 2
    spread = [n * _expected(value - theirs) * _expected(theirs - value) for theirs, n in n_games.items()]
    margin = _NORMAL_975 * _POINTS_PER_E / math.sqrt(sum(spread))
    return Rating(value, value - margin, value + margin)


def score(margin: float) -> float:
    """Returns the score of a game: 1 if the evaluated player earned more than the others, 0.5 if equal, 0 if less."""
    return 0.5 if margin == 0 else float(margin > 0)


class Opponents:
    """The opponents of a run's evaluations: random play, the first policy, and some earlier policies.

    Only the trainer's thread uses it.

    Args:
        n_earlier: The number of earlier policies besides the first: the most recently evaluated ones.
        spec: The architecture of the run's policy.
        folder: The folder that keeps them for a resume; None: they are not stored.
    """

    def __init__(self, n_earlier: int, spec: PolicySpec, folder: Path | None) -> None:
        self._n_earlier = n_earlier
        self._spec = spec
        self._folder = folder
        self._states: dict[int, PolicyState] = {}
        self._ratings: dict[int, float] = {}

    @property
    def states(self) -> Mapping[int, PolicyState]:
        """The arrays of the kept opponents, by version; random play has none."""
        return self._states

    def rate(self, margins: Mapping[int, Evaluation]) -> Rating:
        """Rates a policy by its games.

        Args:
            margins: The games against each opponent, by version; the returns are the margins.
        """
        games: dict[float, list[float]] = {}
        for version, played in margins.items():
            theirs = self._ratings.get(version, 0.0)
            games.setdefault(theirs, []).extend(map(score, played.returns))
        return rate(games)

    def keep(self, version: int, state: PolicyState, rating: float, env_steps: int) -> None:
        """Keeps an evaluated policy, which replaces the oldest policy except the first.

        Raises:
            OSError: The policy cannot be written.
        """
        self._ratings[version] = rating
        self._states[version] = state
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            saved = SavedPolicy(
                spec=self._spec, state=state, policy_version=version, env_steps=env_steps, mean_return=rating
            )
            write_whole(self._path(version), encode_saved_policy(saved))
        for old in sorted(self._states)[1 : -self._n_earlier]:
            del self._states[old]
            if self._folder is not None:
                self._path(old).unlink(missing_ok=True)
        # Running games may be against an opponent that has just been replaced.
        for old in sorted(self._ratings.keys() - self._states.keys())[: -2 * MAX_EVALUATORS]:
            del self._ratings[old]

    def state(self) -> dict[str, Any]:
        """Returns the ratings for a checkpoint; the policies have separate files."""
        return {str(version): rating for version, rating in self._ratings.items()}

    def load_state(self, ratings: Mapping[str, Any]) -> None:
        """Continues from an earlier `state`. Omits policies whose file is missing or has another network."""
        self._ratings = {int(version): float(rating) for version, rating in ratings.items()}
        self._states = {}
        for path in sorted(self._folder.glob("*.safetensors")) if self._folder is not None else ():
            version = int(path.stem) if path.stem.isdecimal() else RANDOM
            if version not in self._ratings:
                continue  # of after the checkpoint
            try:
                saved = read_saved_policy(path)
            except ConfigurationError as error:
                logger.warning("evaluations continue without an opponent: %s", error)
                continue
            if saved.spec != self._spec:
                logger.warning(
                    "evaluations continue without the opponent in %s: its network is %s; expected %s, as in this run",
                    *(path, saved.spec, self._spec),
                )
                continue
            self._states[version] = saved.state
        lost = self._ratings.keys() - self._states.keys()
        if lost and not self._states and self._folder is not None:
            logger.warning(
                "evaluations continue without the earlier opponents, versions %s: %s does not have their files; "
                "policies are rated by games against random play and against future opponents",
                *(sorted(lost), self._folder),
            )

    def _path(self, version: int) -> Path:
        assert self._folder is not None, "called where there is a folder"
        return self._folder / f"{version:010d}.safetensors"


def _expected(points: float) -> float:
    return 1.0 / (1.0 + 10 ** (-points / 400))
