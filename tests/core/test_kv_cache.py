"""The key/value cache: rows write and see at places of their own, accepted paths move, images replace others."""

from __future__ import annotations

import torch

from lantern.attention_mask import additive, window_table
from lantern.draft_tree import static_tree
from lantern.kv_cache import KVCache


def make_cache(num_captions: int = 1, batch: int = 2) -> KVCache:
    visible = torch.tensor([[False], [True]])[:batch].expand(num_captions, -1, -1)
    return KVCache(visible, 2, 6, (1, 1), torch.float32)


def seen(mask: torch.Tensor) -> list:
    return (mask == 0).int().tolist()


def test_rows_write_at_their_own_slots_and_one_write_stores_key_and_value():
    cache = make_cache()
    layer, slots = cache.layers[1], cache.flat_slots(torch.tensor([[0, 1], [3, 4]]))
    key = torch.tensor([[1.0], [2.0], [3.0], [4.0]])  # (rows * nodes, dim)
    layer.entries.index_copy_(0, slots, torch.cat([key, 10 * key], dim=1))
    assert layer.keys.flatten(1).tolist() == [[1, 2, 0, 0, 0, 0], [0, 0, 0, 3, 4, 0]]
    assert layer.values.flatten(1).tolist() == [[10, 20, 0, 0, 0, 0], [0, 0, 0, 30, 40, 0]]
    assert (cache.entries[0] == 0).all()


def test_nodes_see_what_precedes_them_and_one_another_as_the_window_says():
    cache = KVCache(torch.ones(1, 2, 1, dtype=torch.bool), 1, 6, (1, 1), torch.float32)
    window = window_table(static_tree([(0,), (1,)]).ancestors, torch.float32)
    first, second = seen(cache.mask(window, torch.tensor([1, 3])))
    assert first == [[[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]]]
    assert second == [[[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]]]


def test_each_image_may_have_a_window_of_its_own():
    visible = torch.tensor([[[True, False]], [[False, True]]])
    mask = make_cache(num_captions=2).mask(window_table(visible, torch.float32), torch.tensor([1, 4]))
    assert seen(mask) == [[[[0, 1, 0, 0, 0, 0]]], [[[1, 1, 1, 1, 0, 1]]]] * 2


def test_both_captions_of_a_guided_batch_write_at_the_same_slots_and_see_the_same():
    cache = make_cache(num_captions=2, batch=1)
    mask = cache.mask(window_table(torch.ones(1, 1, 1, dtype=torch.bool), torch.float32), torch.tensor([2]))
    assert seen(mask) == [[[[0, 1, 1, 0, 0, 0]]]] * 2  # the caption row is padding
    assert cache.flat_slots(torch.tensor([[2]])).tolist() == [2, 8]


def test_a_padded_caption_row_is_seen_by_itself_alone():
    visible = torch.tensor([[[False], [True]]])
    assert seen(make_cache().text_mask(visible)) == [[[[1, 0, 0, 0, 0, 0]]]] * 2


def test_move_copies_all_layers_and_may_overlap():
    cache = make_cache()
    cache.entries[:] = torch.arange(6.0).view(6, 1, 1, 1)
    cache.move(torch.tensor([[1, 3, 5], [2, 3, 4]]), torch.tensor([[1, 2, 3], [1, 2, 3]]))
    for layer in cache.layers:
        for part in (layer.keys, layer.values):
            assert part.flatten(1).tolist() == [[0, 1, 3, 5, 4, 5], [0, 2, 3, 4, 4, 5]]


def test_copied_rows_replace_keys_values_and_caption_mask_of_both_captions_in_place():
    visible = torch.tensor([[[True], [False], [True]], [[True], [True], [True]]])
    cache = KVCache(visible, 2, 4, (1, 1), torch.float32)
    other = KVCache(torch.tensor([[[False], [True]], [[True], [False]]]), 2, 2, (1, 1), torch.float32)
    cache.entries.fill_(9)
    other.entries[:] = torch.arange(1.0, 5).view(2, 2, 1, 1, 1, 1)  # caption 0: images 1, 2; caption 1: 3, 4
    layer = cache.layers[1]
    cache.copy_rows(torch.tensor([2, 1]), other)
    for part in (layer.keys, layer.values):  # views taken before see the change
        rows = [[9, 9, 9, 9], [2, 2, 9, 9], [1, 1, 9, 9], [9, 9, 9, 9], [4, 4, 9, 9], [3, 3, 9, 9]]
        assert part.flatten(1).tolist() == rows
    window = window_table(torch.ones(1, 1, 1, dtype=torch.bool), torch.float32)
    mask = cache.mask(window, torch.tensor([1, 1, 1]))
    first_is_seen, first_is_hidden = [[[1, 1, 0, 0]]], [[[0, 1, 0, 0]]]
    captioned, null = [first_is_seen, first_is_seen, first_is_hidden], [first_is_seen, first_is_hidden, first_is_seen]
    assert seen(mask) == [*captioned, *null]


def test_additive_mask():
    assert additive(torch.tensor([True, False]), torch.float32).tolist() == [0.0, float("-inf")]


def test_a_window_is_open_before_the_nodes_and_closed_behind_them():
    table = window_table(torch.tensor([[[True, False], [True, True]]]), torch.float32)
    assert (table == 0).int().tolist() == [[[1, 1, 0, 0], [1, 1, 1, 0]]]
    assert (table.masked_fill(table == 0, float("-inf")) == float("-inf")).all()
