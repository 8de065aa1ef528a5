"""The key/value cache: rows write at places of their own, and accepted paths move to the front."""

from __future__ import annotations

import torch

from lantern.kv_cache import KVCache


def make_cache(num_captions: int = 1, batch: int = 2) -> KVCache:
    visible = torch.tensor([[False], [True]])[:batch]
    return KVCache(visible, num_captions, 2, 6, (1, 1), torch.float32)


def test_rows_write_at_their_own_slots():
    cache = make_cache()
    cache.place(torch.tensor([[0, 1], [3, 4]]), torch.zeros(2, 2, 6))
    new = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 2, 1, 1)
    keys, values = cache.append(1, new, 10 * new)
    assert keys.flatten(1).tolist() == [[1, 2, 0, 0, 0, 0], [0, 0, 0, 3, 4, 0]]
    assert values.flatten(1).tolist() == [[10, 20, 0, 0, 0, 0], [0, 0, 0, 30, 40, 0]]
    assert (cache.keys[0] == 0).all()


def test_both_captions_of_a_guided_batch_write_at_the_same_slots_and_see_the_same():
    cache = make_cache(num_captions=2, batch=1)
    mask = cache.place(torch.tensor([[2]]), torch.zeros(1, 1, 6))
    assert (mask == 0).int().tolist() == [[[[0, 1, 1, 1, 1, 1]]]] * 2  # the caption row is padding
    keys, _ = cache.append(0, torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1))
    assert keys.flatten(1).tolist() == [[0, 0, 1, 0, 0, 0]] * 2


def test_a_padded_caption_row_is_seen_by_itself_alone():
    slots, mask = make_cache().place_text()
    assert slots.tolist() == [[0], [0]]
    assert (mask == 0).int().tolist() == [[[[1, 0, 0, 0, 0, 0]]]] * 2


def test_move_copies_all_layers_and_may_overlap():
    cache = make_cache()
    cache.keys[:] = torch.arange(6.0).view(1, 1, 6, 1, 1)
    cache.move(torch.tensor([[1, 3, 5], [2, 3, 4]]), torch.tensor([[1, 2, 3], [1, 2, 3]]))
    assert cache.keys[0].flatten(1).tolist() == [[0, 1, 3, 5, 4, 5], [0, 2, 3, 4, 4, 5]]
    assert torch.equal(cache.keys[0], cache.keys[1])
