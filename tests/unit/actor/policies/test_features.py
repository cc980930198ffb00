import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten as gymnasium_flatten

from rollcast.actor.policies.features import VectorFeatures, feature_layout, image_layout
from rollcast.services.errors import InvalidSpaceError
from tests.unit.actor.acting_policies import batch_of
from tests.unit.actor.sample_environments import IMAGE_SPACES, OBSERVATION_SPACES


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((84, 84, 3), "channel_last"),
        ((210, 160, 3), "channel_last"),
        ((4, 84, 84), "channel_first"),
        ((36, 36, 1), "channel_last"),
        ((1, 36, 36), "channel_first"),
        ((64, 64, 64), "channel_last"),
        ((35, 36, 3), None),
        ((36, 35, 3), None),
        ((3, 35, 36), None),
        ((84, 84), None),
    ],
)
def test_finds_channel_order_of_images(shape, layout):
    assert image_layout(spaces.Box(0, 255, shape, np.uint8)) == layout
    assert image_layout(spaces.Box(0, 1, shape, np.float32)) is None


def brute_force(leaf, value):
    """One observation of one leaf, by loops or by gymnasium's own flattening."""
    if isinstance(leaf, spaces.MultiDiscrete):
        parts = zip(leaf.nvec.ravel(), (value - leaf.start).ravel(), strict=True)
        return np.concatenate([np.eye(n)[index] for n, index in parts])
    scale = 255 if leaf.dtype == np.uint8 else 1
    return gymnasium_flatten(leaf, value) / scale


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_vectors_match_their_brute_force_twin(name):
    space = OBSERVATION_SPACES[name]
    layout = feature_layout(space)
    batch = batch_of(space)
    features = VectorFeatures(layout)(batch)
    assert features.dtype == np.float32
    expected = [
        np.concatenate([brute_force(leaf.space, batch[leaf.path][n]) for leaf in layout.vectors]) for n in range(6)
    ]
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    assert features.shape == (6, layout.n_features)
    assert not layout.images


def test_the_smallest_start_of_a_discrete_has_its_column():
    least = np.iinfo(np.int64).min
    features = VectorFeatures(feature_layout(spaces.Discrete(3, start=least)))
    np.testing.assert_array_equal(features({"": np.array([least, least + 2])}), [[1, 0, 0], [0, 0, 1]])


def test_a_single_float32_leaf_is_not_copied():
    features = VectorFeatures(feature_layout(spaces.Box(-1, 1, (4,), np.float32)))
    batch = np.zeros((3, 4), np.float32)
    assert features({"": batch}) is batch
    matrix = VectorFeatures(feature_layout(spaces.Box(-1, 1, (2, 2), np.float32)))
    assert np.shares_memory(matrix({"": batch.reshape(3, 2, 2)}), batch)


def test_batch_sizes_may_change_without_stale_rows():
    space = OBSERVATION_SPACES["dict"]
    features = VectorFeatures(feature_layout(space))
    for n in (4, 2, 4):
        batch = batch_of(space, n)
        np.testing.assert_array_equal(features(batch), VectorFeatures(feature_layout(space))(batch))


def test_separates_images_from_vectors():
    layout = feature_layout(IMAGE_SPACES["mixed"])
    assert layout.images == {"camera": "channel_last", "depth": "channel_first"}
    assert [(leaf.path, leaf.offset, leaf.size) for leaf in layout.vectors] == [("arm", 0, 3), ("gear", 3, 4)]
    assert layout.n_features == 7


def test_rejects_other_leaves():
    with pytest.raises(InvalidSpaceError, match="Text"):
        feature_layout(spaces.Dict({"a": spaces.Text(3)}))
