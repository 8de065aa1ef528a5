"""Tests of transformers models with adapters, quantised or offloaded weights, compiled code and other attention.

Greedy codes equal those of the class's `generate`, and Jacobi decoding equals autoregressive decoding. Otherwise one
sentence refuses the model.
"""

from __future__ import annotations

import ast

import accelerate
import peft
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.quantizers.quantizers_utils import should_convert_module

import lantern
from helpers.tiny_processors import make_emu3_processor
from helpers.tiny_transformers import IDS, MASK, NULL, make_tiny, own_codes
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.adapter import adapt

SLOW = pytest.mark.slow
NUM_ROWS = 3
# The layers of each model, and its layers that have an effect on codes only.
LAYERS = {"janus": "model.language_model", "emu3": "model.text_model", "glm_image": "model.language_model"}
HEADS = {"janus": "model.generation_head.vision_head", "emu3": "lm_head", "glm_image": "lm_head"}
TABLES = {name: f"{LAYERS[name]}.embed_tokens" for name in LAYERS} | {"janus": "model.generation_embeddings"}


def scale_of(family):
    return 3.0 if family == "janus" else 1.0


def decode(model, family, method, temperature):
    target = adapt(model, family, num_text_tokens=IDS.shape[1], **NULL[family], **make_tiny(family)[1])
    sampling = SamplingConfig(temperature, cfg_scale=scale_of(family))
    decoder = make_decoder(DecodingModels(target), make_method(method), sampling)
    noise = [decoder.make_noise(0, str(row)) for row in range(NUM_ROWS)]
    return decoder.generate(IDS[:NUM_ROWS], MASK[:NUM_ROWS], noise).codes


def own(model, family):
    return own_codes(model, family, IDS[:NUM_ROWS], MASK[:NUM_ROWS])


def check(model, family, expected=None):
    """Compare the greedy codes of Lantern with `expected`, by default those of `generate`, and two methods at T = 1."""
    expected = own(model, family) if expected is None else expected
    assert torch.equal(decode(model, family, "jacobi", 0.0), expected)
    assert torch.equal(decode(model, family, "jacobi", 1.0), decode(model, family, "autoregressive", 1.0))


def add_lora(model, *names, **options):
    torch.manual_seed(1)
    pattern = "|".join(name.replace(".", r"\.") for name in names)
    config = peft.LoraConfig(r=4, target_modules=pattern, init_lora_weights=False, **options)
    return peft.get_peft_model(model, config).eval()


@pytest.mark.parametrize(
    ("part", "family"),
    [
        ("attention", "emu3"),
        ("head", "janus"),
        ("table", "janus"),
        pytest.param("attention", "janus", marks=SLOW),
        pytest.param("attention", "glm_image", marks=SLOW),
        pytest.param("head", "glm_image", marks=SLOW),
        pytest.param("table", "emu3", marks=SLOW),
    ],
)
def test_a_lora_of_peft_counts_whether_merged_or_not(family, part):
    base, _ = make_tiny(family)
    attention = f"{LAYERS[family]}.layers.1.self_attn.q_proj", f"{LAYERS[family]}.layers.0.self_attn.v_proj"
    names = {"attention": attention, "head": (HEADS[family],), "table": (TABLES[family],)}[part]
    before = own(base, family)
    wrapped = add_lora(base, *names)
    expected = own(wrapped.get_base_model(), family)
    assert not torch.equal(expected, before)
    check(wrapped.get_base_model(), family, expected)
    check(wrapped.merge_and_unload(), family, expected)


def test_a_model_within_wrappers_of_peft_and_torch_compile_is_unwrapped():
    model, _ = make_tiny("emu3")
    plain = lantern.from_transformers(model, make_emu3_processor(), grid=4).generate("cat", temperature=0.0)
    for wrapped in (add_lora(model, "lm_head", "model.text_model.embed_tokens"), torch.compile(model, backend="eager")):
        made = lantern.from_transformers(wrapped, make_emu3_processor(), grid=4)
        found, expected = (made.generate("cat", temperature=0.0, method=name) for name in ("jacobi", "autoregressive"))
        assert torch.equal(found.codes, expected.codes) and not torch.equal(found.codes, plain.codes)


def test_a_trained_copy_of_the_head_counts():
    model, _ = make_tiny("emu3")
    wrapped = add_lora(model, "model.text_model.layers.1.self_attn.q_proj", modules_to_save=["lm_head"])
    with torch.no_grad():
        wrapped.get_base_model().lm_head.modules_to_save["default"].weight.neg_()
    check(wrapped.get_base_model(), "emu3")


def test_training_mode_and_adapters_in_the_prompt_are_refused_in_a_sentence():
    wrapped = add_lora(make_tiny("emu3")[0], "model.text_model.layers.1.self_attn.q_proj", lora_dropout=0.5)
    wrapped.base_model.model.model.text_model.train()
    with pytest.raises(ValueError, match=r"must be in evaluation mode, got model.text_model in training mode"):
        decode(wrapped.get_base_model(), "emu3", "jacobi", 0.0)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, token_dim=64, num_layers=2)
    config.num_attention_heads, config.num_transformer_submodules = 4, 1
    wrapped = peft.get_peft_model(make_tiny("emu3")[0], config).eval()
    with pytest.raises(ValueError, match="adapters must be in layers, as LoRA's are, got PROMPT_TUNING"):
        lantern.from_transformers(wrapped, make_emu3_processor(), grid=4)
    with pytest.raises(ValueError, match="adapters must be in layers, as LoRA's are"):
        wrapped.generate(input_ids=IDS[1:2], custom_generate=lantern.custom_generate(grid=4))


class Int8Linear(nn.Linear):
    """A linear map whose weight is stored as integers and one scale per output, as bitsandbytes and torchao do."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)
        self.bias = linear.bias
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.scale, self.bias)


def quantise(model, start):
    """Replace all linear maps whose name begins with `start`. Return the model."""
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name.startswith(start)]
    for name in names:
        model.set_submodule(name, Int8Linear(model.get_submodule(name)))
    assert names
    return model


@pytest.mark.parametrize("family", ["janus", *(pytest.param(family, marks=SLOW) for family in ("emu3", "glm_image"))])
def test_quantised_layers_and_a_quantised_head_are_called(family):
    check(quantise(make_tiny(family)[0], LAYERS[family]), family)
    check(quantise(make_tiny(family)[0], HEADS[family]), family)


def test_a_quantised_or_adapted_image_tokenizer_is_refused_in_a_sentence_whose_remedy_helps():
    """The remedy is a list of names, which transformers matches with the names of layers before it quantises them."""
    quantised = quantise(make_tiny("emu3")[0], "model.vqmodel")
    adapted = add_lora(make_tiny("emu3")[0], "model.vqmodel.encoder.conv_in").get_base_model()
    for model in (quantised, adapted):
        with pytest.raises(
            ValueError, match=r"model\.vqmodel, must have its published layers, got encoder.* of "
        ) as error:
            lantern.from_transformers(model, make_emu3_processor(), grid=4)
    skipped = ast.literal_eval(str(error.value).partition("llm_int8_skip_modules=")[2])
    names = [name for name, part in quantised.named_modules() if isinstance(part, nn.Linear)]
    converted = [name for name in names if should_convert_module(name, skipped)]
    assert {name.partition(".layers.")[0] for name in converted} >= {"model.text_model"}
    assert not [name for name in converted if name.startswith(("model.vqmodel", "lm_head"))]
    assert [name for name in names if name.startswith("model.vqmodel")]


@pytest.mark.parametrize("family", ["janus", pytest.param("emu3", marks=SLOW)])
def test_layers_that_accelerate_keeps_on_the_cpu_or_a_disk_are_fetched(family, tmp_path):
    model, _ = make_tiny(family)
    expected = own(model, family)
    model.save_pretrained(tmp_path)
    children = [f"model.{name}" for name, _ in model.model.named_children()] + ["lm_head"] * hasattr(model, "lm_head")
    for layers, others in (("disk", "cpu"), ("cpu", "disk")):
        # Janus's lm_head, which generates no images, shares its weight with the layers' embedding.
        places = {name: layers if name in (LAYERS[family], "lm_head") else others for name in children}
        options = {"offload_folder": tmp_path / layers, "offload_buffers": True}
        loaded = type(model).from_pretrained(tmp_path, device_map=places, **options)
        assert {str(weight.device) for weight in loaded.parameters()} == {"cpu", "meta"}
        check(loaded, family, expected)
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert offloaded.device.type == "meta"
    check(offloaded, family, expected)
    assert {weight.device.type for weight in offloaded.parameters()} == {"meta"}


def test_an_offloaded_image_tokenizer_makes_the_same_images():
    model, _ = make_tiny("emu3")
    made = [lantern.from_transformers(model, make_emu3_processor(), grid=4)]
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    made.append(lantern.from_transformers(model, make_emu3_processor(), grid=4))
    options = {"method": "proximity", "drafts": "jacobi", "tree": "chain3", "k": 3}
    whole, offloaded = (one.generate("cat", **options) for one in made)
    assert (whole.pixels == offloaded.pixels).all() and torch.equal(whole.codes, offloaded.codes)
    decode = lantern.custom_generate(grid=4, seed=0, **options)
    assert model.generate(IDS[1:2], custom_generate=decode).shape[1] > 20


def test_layers_on_several_devices_and_weights_that_were_never_loaded_are_refused_in_a_sentence():
    model, _ = make_tiny("emu3")
    accelerate.cpu_offload_with_hook(model, execution_device="cuda:0")
    with pytest.raises(ValueError, match=r"must run on one device, got cpu, cuda:0"):
        decode(model, "emu3", "jacobi", 0.0)
    for name, found in (("model.text_model.layers.1", "cpu, meta"), ("model.text_model", "cpu, meta"), ("", "meta")):
        model, _ = make_tiny("emu3")
        model.get_submodule(name).to("meta")
        with pytest.raises(ValueError, match=rf"must run on one device, got {found}"):
            decode(model, "emu3", "jacobi", 0.0)


@SLOW
def test_compiled_layers_are_run_compiled():
    model, _ = make_tiny("emu3")
    expected, calls = own(model, "emu3"), []

    def backend(graph, _):
        calls.append(graph)
        return graph.forward

    model.model.text_model.compile(backend=backend)
    assert torch.equal(decode(model, "emu3", "jacobi", 0.0), expected)
    assert calls
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("flash_attention_2", "emu3"),
        ("flash_attention_2", "glm_image"),
        ("eager", "janus"),
        ("flex_attention", "janus"),
        pytest.param("flash_attention_2", "janus", marks=SLOW),
        pytest.param("eager", "emu3", marks=SLOW),
        pytest.param("flex_attention", "glm_image", marks=SLOW),
    ],
)
def test_attention_that_takes_no_tree_mask_is_replaced_within_a_pass(family, kind):
    """The kinds that cannot run on every CPU are only named in the config, which is what the model reads."""
    model, _ = make_tiny(family)
    expected = own(model, family)
    config = model.get_submodule(LAYERS[family]).config
    config._attn_implementation = kind
    check(model, family, expected)
    assert config._attn_implementation == kind


def test_attention_is_replaced_if_no_heads_share_keys_and_values():
    model, _ = make_tiny("anole")
    expected = decode(model, "anole", "jacobi", 1.0)
    model.config._attn_implementation = "flash_attention_2"
    assert torch.equal(decode(model, "anole", "jacobi", 1.0), expected)


@pytest.mark.parametrize(
    ("family", "dtype"), [("janus", torch.bfloat16), ("emu3", torch.float16), ("glm_image", torch.bfloat16)]
)
def test_in_16_bits_codes_are_the_classs_up_to_rounding(family, dtype):
    """Each code of `generate` has, under Lantern's target, the largest logit except for rounding."""
    model = make_tiny(family)[0].to(dtype)
    codes = own(model, family)
    target = adapt(model, family, num_text_tokens=IDS.shape[1], **NULL[family], **make_tiny(family)[1])
    run = target if family != "janus" else target.forward_with_null
    hidden = run(IDS[:NUM_ROWS], MASK[:NUM_ROWS], codes[:, :-1])[:, IDS.shape[1] - 1 :].unflatten(0, (-1, NUM_ROWS))
    logits = target.guided_logits(hidden, scale_of(family), torch.arange(codes.shape[1]))
    gap = logits.amax(-1) - logits.gather(-1, codes[..., None])[..., 0]
    rounding = torch.finfo(dtype).eps * scale_of(family) * 2 * logits[logits.isfinite()].abs().max()
    assert (gap <= 4 * rounding).all() and (gap == 0).float().mean() > 0.9
    assert decode(model, family, "jacobi", 1.0).shape == codes.shape
