"""What merging keeps: keys, shapes, dtypes, counters, ties, and the inputs themselves."""

from typing import Any

import pytest
import torch
from torch import nn

from mergelib.merging import merge
from mergelib.registry import get_method
from tests.library.merging.cases import DTYPES, NAMES, make_family


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_keys_shapes_dtypes_and_counters_are_kept(name: str, dtype: torch.dtype) -> None:
    pretrained, experts = make_family(dtype)
    merged = merge(name, experts, pretrained=pretrained)
    assert list(merged) == list(pretrained)
    for key, tensor in merged.items():
        assert (tensor.shape, tensor.dtype) == (pretrained[key].shape, pretrained[key].dtype), key
        assert tensor.numel() == 0 or tensor.data_ptr() != pretrained[key].data_ptr(), key
    assert merged["steps"] == 0
    assert not torch.equal(merged["layer.weight"], pretrained["layer.weight"])


@pytest.mark.parametrize("name", [n for n in NAMES if not get_method(n).needs_pretrained])
def test_counters_come_from_the_first_expert_without_a_pretrained_model(name: str) -> None:
    assert merge(name, make_family()[1])["steps"] == 1


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_as_they_are(name: str, dtype: torch.dtype, parameters: bool) -> None:
    states = [make_family(dtype)[0], *make_family(dtype)[1]]
    if parameters:
        states = [
            {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in state.items()}
            for state in states
        ]
    before = [{k: v.detach().clone() for k, v in state.items()} for state in states]
    merged = merge(name, states[1:], pretrained=states[0])
    for state, kept in zip(states, before, strict=True):
        for key in kept:
            assert torch.equal(state[key], kept[key]), key
    assert not any(tensor.requires_grad for tensor in merged.values())


def test_experts_as_list_mapping_and_models_state_dicts() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(3)]
    base, a, b = (model.state_dict() for model in models)
    listed = merge("task_arithmetic", [a, b], pretrained=base)
    mapped = merge("task_arithmetic", {"cars": a, "birds": b}, pretrained=base)
    assert all(torch.equal(listed[key], mapped[key]) for key in base)
    models[0].load_state_dict(listed)
    assert listed["1.num_batches_tracked"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_tied_tensors_stay_tied(name: str) -> None:
    pretrained, experts = make_family()
    tied = [{**state, "head.weight": state["layer.weight"]} for state in (pretrained, *experts)]
    merged = merge(name, tied[1:], pretrained=tied[0])
    assert merged["head.weight"].data_ptr() == merged["layer.weight"].data_ptr()
    alone = merge(name, experts, pretrained=pretrained)
    assert torch.equal(merged["head.weight"], alone["layer.weight"])
    loose = [{**state, "head.weight": state["layer.weight"].clone()} for state in tied]
    merged = merge(name, loose[1:], pretrained=loose[0])
    assert merged["head.weight"].data_ptr() != merged["layer.weight"].data_ptr()


def test_views_of_one_memory_are_not_tied() -> None:
    whole = torch.arange(12.0)
    state = {"all": whole, "half": whole[:6], "other": whole[6:], "table": whole.view(3, 4)}
    merged = merge("average", [state])
    assert all(torch.equal(merged[key], state[key]) for key in state)


@pytest.mark.parametrize("name", NAMES)
def test_memory_layout_does_not_matter(name: str) -> None:
    pretrained, experts = make_family()
    merged = merge(name, experts, pretrained=pretrained)
    plain = [{k: v.contiguous() for k, v in s.items()} for s in (pretrained, *experts)]
    expected = merge(name, plain[1:], pretrained=plain[0])
    assert not pretrained["turned"].is_contiguous()
    for key in merged:
        torch.testing.assert_close(merged[key], expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_tensor_does_not_depend_on_the_others(name: str) -> None:
    """But for the threshold of TIES and DOGE over the whole model."""
    options: dict[str, Any] = {"trim": "tensor"} if name in ("ties", "doge") else {}
    pretrained, experts = make_family()
    whole = merge(name, experts, pretrained=pretrained, **options)
    for key in ("layer.weight", "bias"):
        alone = merge(
            name, [{key: e[key]} for e in experts], pretrained={key: pretrained[key]}, **options
        )
        assert torch.equal(whole[key], alone[key])


@pytest.mark.parametrize("name", NAMES)
def test_device(name: str) -> None:
    pretrained, experts = make_family()
    merged = merge(name, experts, pretrained=pretrained, device="cpu")
    expected = merge(name, experts, pretrained=pretrained)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_cuda_agrees_with_the_cpu(name: str, dtype: torch.dtype) -> None:
    pretrained, experts = make_family(dtype)
    expected = merge(name, experts, pretrained=pretrained)
    there = merge(name, experts, pretrained=pretrained, device="cuda")
    moved = [{k: v.cuda() for k, v in s.items()} for s in (pretrained, *experts)]
    resident = merge(name, moved[1:], pretrained=moved[0])
    for key, tensor in expected.items():
        assert there[key].device.type == "cpu"
        assert resident[key].device.type == "cuda"
        torch.testing.assert_close(there[key], tensor)
        torch.testing.assert_close(resident[key].cpu(), tensor)
