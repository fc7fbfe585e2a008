# %% tags=["remove-cell"]
# Where the book's packages are missing, as on Colab, install them: published copies name their
# address here. An unrelated package on the index is named mergelib, too, and has to go first.
import importlib.util
import subprocess
import sys

SOURCE = ""
if importlib.util.find_spec("mergebook") is None:
    other = importlib.util.find_spec("mergelib") is not None
    if not SOURCE:
        what = "uninstall the other package named mergelib, then install" if other else "install"
        raise ModuleNotFoundError(f"{what} mergelib-book: see 'How to run' in the book")
    if other:
        print("Another package named mergelib is installed. The book's mergelib takes its place.")
        subprocess.check_call([sys.executable, "-m", "pip", "uninstall", "-qy", "mergelib"])
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", SOURCE])

# %% [markdown]
# # Recipes for your own models
#
# This page has nine recipes for merging your own models, and checks the result of each against another library, a
# computation by hand or the merge in memory.
#
# | You have | Recipe |
# |---|---|
# | language models fine-tuned from one base | {ref}`Merge two language models <recipe-language>` |
# | LoRA adapters | {ref}`Merge LoRA adapters <recipe-lora>` |
# | image models with BatchNorm and different heads | {ref}`Merge timm's ResNets <recipe-resnet>` |
# | models that embed sentences | {ref}`Merge sentence encoders <recipe-sentences>` |
# | a YAML file for mergekit | {ref}`Run a mergekit recipe <recipe-yaml>` |
# | labelled examples | {ref}`Choose a hyperparameter on 100 examples <recipe-search>` |
# | models that do not fit into memory | {ref}`Merge models larger than memory <recipe-memory>` |
# | checkpoints of one training run | {ref}`Merge checkpoints of one run <recipe-run>` |
# | a trained model that is too small | {ref}`Grow a trained model <recipe-grow>` |
#
# The code runs on tiny models with random weights, which the folded cells make. Replace their folders by your own. [](../book/how-to-run.md)
# installs mergelib; the code here also needs `pip install peft timm sentence-transformers pyyaml`. Each command and the
# first call below it write the same model. Names, shapes, tokens and bases that do not match are refused, or cause a warning
# ([](../book/errors.md)). Whether a merge is good, only your own test shows. The checks compare arrays by `close`.

# %% tags=["parameters", "remove-cell"]
SUITE = "glyphs8"
PROFILE = "default"
SEED = 0
DEVICE = "cpu"

# %% tags=["hide-input"]
import warnings

# PEFT asks transformers under an old name, and so do we Sentence-Transformers, for older versions.
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing|.*sentence_transformers.models")
import copy
import os
import tempfile
from pathlib import Path

import peft
import timm
import tokenizers
import torch
import transformers
from IPython.display import Markdown, display
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, models
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call
from transformers import AutoModelForCausalLM

scratch = tempfile.TemporaryDirectory()
os.chdir(scratch.name)


# %% tags=["hide-input"]
def moved(model, seed, amount=0.02):
    """Return a copy whose weights have moved a little, as if it had been fine-tuned."""
    generator = torch.Generator().manual_seed(100 * SEED + seed)
    model = copy.deepcopy(model)
    for weight in model.parameters():
        weight.data += amount * torch.randn(weight.shape, generator=generator)
    return model


def make_tokenizer(*added):
    """Return a tokenizer of eight words and the added ones."""
    known = ("<unk>", "<eos>", "the", "cat", "dog", "sees", "one", "two")
    numbered = {word: row for row, word in enumerate(known)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbered, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<eos>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.add_tokens([*added])
    return tokenizer


def close(one, other, tolerance=1e-5):
    """Return whether two arrays differ by less than this."""
    return bool(abs(torch.as_tensor(one) - torch.as_tensor(other)).max() < tolerance)


# %% [markdown]
# (recipe-language)=
# ## Merge two fine-tuned language models
#
# The experts' folders may be sharded differently and have different dtypes. mergelib computes in float32 and rounds once, to `--dtype`.
# `mergelib inspect` reports what a merge would refuse, here the added token, and suggests a command. `--tokenizer union` matches
# rows by token and keeps the rows of tokens that only one model has. For two experts start at a scale of 1, test it on both tasks, and compare with
# the base ([](../book/which-method.md)). `--chat-template experts` copies the chat template that the experts share.
#
# ```bash
# mergelib inspect maths/ code/ -p base/
# mergelib merge task_arithmetic maths/ code/ -p base/ -o chat/ --set scale=1 \
#   --tokenizer union --dtype bfloat16 --max-shard-size 5GB
# ```

# %% tags=["hide-input"]
torch.manual_seed(SEED)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 8}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.2}
config = transformers.LlamaConfig(bos_token_id=1, eos_token_id=1, **sizes, **heads)
llama = transformers.LlamaForCausalLM(config)
llama.save_pretrained("base")
moved(llama, 1).bfloat16().save_pretrained("maths", max_shard_size="5KB")
larger = moved(llama, 2)
larger.resize_token_embeddings(9, mean_resizing=False)  # with a row for <call>
larger.half().save_pretrained("code")
for folder, added in {"base": [], "maths": [], "code": ["<call>"]}.items():
    make_tokenizer(*added).save_pretrained(folder)
text = make_tokenizer("<call>")("the cat sees two <call>", return_tensors="pt").input_ids
short = text[:, :-1]  # without <call>

# %% tags=["nbval-check-output"]
import mergelib as ml

options = {"tokenizer": "union", "dtype": "bfloat16", "max_shard_size": "10KB"}
experts = ["maths", "code"]
ml.merge_files("task_arithmetic", experts, "chat", pretrained="base", scale=1, **options)

chat = AutoModelForCausalLM.from_pretrained("chat").float()
by_hand = AutoModelForCausalLM.from_pretrained("code").float()
base, maths = map(ml.load_state_dict, ("base", "maths"))
for key, code in by_hand.state_dict().items():
    code = code[: len(base[key])]  # all rows but that of <call>
    code.copy_(maths[key] + code - base[key])
print("tokens:", chat.config.vocab_size, "shards:", len([*Path("chat").glob("*.safetensors")]))
print(
    "logits equal those of a merge by hand:", close(chat(text).logits, by_hand(text).logits, 0.03)
)

# %% [markdown]
# (recipe-lora)=
# ## Merge LoRA adapters
#
# Pass the folders that PEFT wrote. Ranks, targets and `lora_alpha` may differ. `merge` writes a full model, by any method.
# `merge-adapters` writes an adapter, which is exact for `average` and `task_arithmetic` and has the sum of the ranks as its rank.
# `--rank 16` truncates it and reports the error per module. Other methods, such as `tsv`, need `--rank`. `task_arithmetic` at scale 1
# adds the updates, which may be too strong for many adapters; its default is 0.3. `average` gives their mean.
#
# ```bash
# mergelib merge task_arithmetic lora_a/ lora_b/ lora_c/ -p base/ -o full/ --set scale=1
# mergelib merge-adapters task_arithmetic lora_a/ lora_b/ lora_c/ -o sum/ --set scale=1
# ```


# %% tags=["hide-input"]
def adapted(folder):
    """Return the base model with an adapter, as PEFT reads it."""
    return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), folder)


for rank, name in enumerate(("lora_a", "lora_b", "lora_c"), 2):
    torch.manual_seed(SEED + rank)
    targets = ["q_proj", "v_proj", "up_proj"]
    lora = peft.LoraConfig(r=rank, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained("base"), lora).save_pretrained(name)

# %% tags=["nbval-check-output"]
loras = ["lora_a", "lora_b", "lora_c"]
ml.merge_files("task_arithmetic", loras, "full", pretrained="base", scale=1)
table = ml.merge_adapters("task_arithmetic", loras, "sum", scale=1)

full, by_hand = map(AutoModelForCausalLM.from_pretrained, ("full", "base"))
for lora in loras:
    applied = adapted(lora).merge_and_unload().state_dict()
    for key, weight in by_hand.state_dict().items():
        weight += applied[key] - base[key]
logits = by_hand(short).logits
print("the full model equals PEFT's models added by hand:", close(full(short).logits, logits))
rank = table["rank"].max()
print(f"the adapter of rank {rank:.0f} does, too:", close(adapted("sum")(short).logits, logits))

# %% [markdown]
# (recipe-resnet)=
# ## Merge timm's ResNets, with BatchNorm and different heads
#
# `--exclude` leaves out the heads. `--fold-convolutions` lets methods for matrices, such as `tsv`, treat a filter as a row;
# without it they only average convolutions. BatchNorm's averaged statistics are wrong for the merged weights. Measure them
# again on a few unlabelled batches that mix all tasks, and then use each task's head. Batches of one task give the statistics of
# that task only.
#
# ```bash
# mergelib merge tsv cars/ pets/ -p backbone/ -o both/ --exclude 'fc.*' --fold-convolutions
# ```

# %% tags=["hide-input"]
torch.manual_seed(SEED)
channels = {"channels": (8, 16, 16, 32)}
resnet = timm.create_model("resnet10t", num_classes=10, **channels)
for number, (name, classes) in enumerate({"backbone": 10, "cars": 4, "pets": 6}.items()):
    network = moved(resnet, number, 0.01 * (number > 0))
    network.reset_classifier(classes)
    network.train()(torch.randn(32, 3, 64, 64) + number)  # fills BatchNorm's statistics
    timm.models.save_for_hf(network, name, model_args=channels, safe_serialization=True)
images = torch.cat([torch.randn(32, 3, 64, 64) + number for number in (1, 2)])


def load(name):
    """Return a network from a folder, as timm reads it."""
    return timm.create_model(f"local-dir:{name}", pretrained=True).eval()


# %% tags=["nbval-check-output"]
options = {"exclude": "fc.*", "is_matrix": ml.is_kernel}
ml.merge_files("tsv", ["cars", "pets"], "both", pretrained="backbone", **options)

cars, both = load("cars"), load("both")
head = {f"fc.{key}": value for key, value in cars.fc.state_dict().items()}
state = ml.recalibrate_batchnorm(both, "both", [images])
cars.load_state_dict(state | head)

in_memory = ml.merge("tsv", [load("cars"), load("pets")], pretrained=load("backbone"), **options)
averaged = both.forward_features(images)
both.load_state_dict(in_memory)
print("features equal those of a merge in memory:", close(averaged, both.forward_features(images)))
exact = copy.deepcopy(cars).train().forward_features(images)  # with the batch's own statistics
for name, features in {"measured": cars.forward_features(images), "averaged": averaged}.items():
    print(f"features are right with {name} statistics:", close(features, exact, 0.05))

# %% [markdown]
# (recipe-sentences)=
# ## Merge sentence encoders
#
# The output folder gets the tokenizer, `modules.json` and the pooling of the base, so `SentenceTransformer("search/")` reads it.
# Modules with weights, such as `2_Dense`, are merged by the same method. A different pooling in one of the models causes a
# warning. Choose the scale on your own retrieval or similarity scores, as [below](#recipe-search).
#
# ```bash
# mergelib merge task_arithmetic news/ law/ -p encoder/ -o search/ --set scale=1
# ```

# %% tags=["hide-input"]
torch.manual_seed(SEED)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 9}
more = {"num_attention_heads": 2, "max_position_embeddings": 16}
transformers.BertModel(transformers.BertConfig(**sizes, **more)).save_pretrained("bert")
make_tokenizer().save_pretrained("bert")
parts = [models.Transformer("bert"), models.Pooling(16), models.Dense(16, 8)]
encoder = SentenceTransformer(modules=parts, device="cpu")
for number, name in enumerate(("encoder", "news", "law")):
    moved(encoder, number).save(name)

# %% tags=["nbval-check-output"]
ml.merge_files("task_arithmetic", ["news", "law"], "search", pretrained="encoder", scale=1)

folders = ["encoder", "news", "law", "search"]
by_hand, news, law, merged = (SentenceTransformer(name, device="cpu") for name in folders)
for weight, one, two in zip(by_hand.parameters(), news.parameters(), law.parameters()):
    weight.data += one.data - weight.data + two.data - weight.data
sentences = ["the cat sees two", "one dog"]
vectors = merged.encode(sentences)
print("embeddings equal those computed by hand:", close(vectors, by_hand.encode(sentences)))

# %% [markdown]
# (recipe-yaml)=
# ## Run a mergekit recipe, with a gradient and a filter
#
# A list of values is a gradient from the first layer to the last, and a `filter` chooses tensors by their names. The embedding, the
# last norm and the head belong to no layer and get the first value. Paths are relative to the recipe. An unknown field is refused with its line, and
# so are stacked layers (`slices`). {ref}`The reference <recipes>` lists the other differences from mergekit. The output folder
# keeps the recipe.

# %% tags=["hide-input"]
moved(llama, 3).save_pretrained("one")
moved(llama, 4).save_pretrained("two")

# %% tags=["remove-input"]
RECIPE = """
merge_method: task_arithmetic
base_model: base/
models:
  - model: one/
    parameters: {weight: 0.5}
  - model: two/
    parameters:
      weight:
        - {filter: mlp, value: 0.7}
        - value: [0.2, 0.4] # from the first layer to the last
"""
Path("recipe.yml").write_text(RECIPE)
display(Markdown(f"```yaml{RECIPE}```"))

# %% [markdown]
# ```bash
# mergelib run recipe.yml -o from_recipe/
# ```

# %% tags=["nbval-check-output"]
ml.run_recipe("recipe.yml", "from_recipe")

by_hand, one, two = map(AutoModelForCausalLM.from_pretrained, ("base", "one", "two"))
factors = {"mlp": 0.7, "layers.0": 0.2, "layers.1": 0.3, "layers.2": 0.4, "": 0.2}
pairs = zip(one.parameters(), two.parameters())
for (name, weight), (first, second) in zip(by_hand.named_parameters(), pairs):
    factor = next(value for part, value in factors.items() if part in name)
    weight.data += 0.5 * (first.data - weight.data) + factor * (second.data - weight.data)
merged = AutoModelForCausalLM.from_pretrained("from_recipe")
print("logits equal those computed by hand:", close(merged(short).logits, by_hand(short).logits))

# %% [markdown]
# (recipe-search)=
# ## Choose a hyperparameter on 100 labelled examples
#
# `ml.search` merges in memory with every value of a grid and keeps the best by your score, here the accuracy on 50 images of each
# of two tasks. It extends the grid if the best value is at one of its ends. Any function of a state dict can be the score, such as
# one that calls `model.load_state_dict(state)` first. The score of the best candidate is too optimistic, so report the accuracy on other examples ([](24-choosing-checking-reporting)).

# %% tags=["hide-input"]
digits = load_digits()
labels, pixels = torch.tensor(digits.target), torch.tensor(digits.images).float() / 16
tasks = [pixels, pixels.flip(2)]  # digits, and digits in a mirror


def trained(model, inputs, targets, steps, rate):
    """Return a trained copy of the model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def part(start, stop=None):
    """Return images and labels of both tasks."""
    return torch.cat([images[start:stop] for images in tasks]), labels[start:stop].repeat(2)


# %% tags=["hide-input"]
torch.manual_seed(SEED)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
start = trained(network, *part(0, 100), 100, 3e-3)
experts = [trained(start, images[100:1100], labels[100:1100], 60, 1e-3) for images in tasks]
validation, test = part(1100, 1150), part(1150)


# %%
def accuracy(state, examples=validation):
    """Return the fraction of correct labels."""
    answers = functional_call(network, state, examples[0]).argmax(1)
    return (answers == examples[1]).double().mean().item()


grid = {"scale": [0.2, 0.4, 0.6]}
found = ml.search("task_arithmetic", experts, pretrained=start, score=accuracy, grid=grid)

for key, weight in start.state_dict().items():
    updates = [expert.state_dict()[key] - weight for expert in experts]
    assert close(found.state[key], weight + found.best["scale"] * sum(updates))
assert accuracy(found.state) == found.score
print(found.best, f"test accuracy: {accuracy(found.state, test):.2f}")
found.table

# %% [markdown]
# (recipe-memory)=
# ## Merge models larger than memory
#
# `mergelib merge` and `ml.merge_files` read, merge and write one tensor at a time. With $n$ experts they hold at most $n + 3$ tensors of
# the largest one's size. Methods that factorise an $a \times b$ matrix with $b \le a$, such as `tsv`, also need about $4 b^2$ numbers.
# `--device cuda` computes on a GPU.
#
# ```bash
# mergelib merge task_arithmetic a.safetensors b.safetensors c.safetensors \
#   -p large.safetensors -o m.safetensors --set scale=0.3 --device cuda
# ```

# %% tags=["hide-input"]
paths = [f"{name}.safetensors" for name in ("large", "a", "b", "c")]
for number, path in enumerate(paths):
    generator = torch.Generator().manual_seed(100 * SEED + number)
    layers = {f"layers.{i}": torch.rand(512, 512, generator=generator) for i in range(64)}
    save_file(layers, path)
del layers

# %% tags=["nbval-check-output"]
from mergelib.evaluation.cost import measured

base, *experts = paths
with measured() as streamed:
    ml.merge_files("task_arithmetic", experts, "m.safetensors", pretrained=base, scale=0.3)
with measured() as loaded:
    weights, *others = map(load_file, paths)
    for key, weight in weights.items():
        weight += 0.3 * sum(other[key] - weight for other in others)

merged, size = load_file("m.safetensors"), sum(map(os.path.getsize, paths))
print("equal to the merge by hand:", all(close(merged[key], weights[key]) for key in weights))
if streamed.peak_bytes is not None:  # on Linux
    print("peak below a tenth of the inputs' size, streamed:", streamed.peak_bytes < size / 10)
    print("the same, loaded:", loaded.peak_bytes < size / 10)

# %% [markdown]
# (recipe-run)=
# ## Merge checkpoints of one run
#
# `wsm` scales the updates between checkpoints as a decay of the learning rate would have, so a run with a constant rate needs no
# decay phase. List checkpoints in the order of training; `decay=linear` gives their average. The result equals a run with decay
# where gradients do not depend on the weights, as in this check, and only approximates one in real training.
#
# ```bash
# mergelib merge wsm step-0.safetensors step-1.safetensors step-2.safetensors \
#   step-3.safetensors -o decayed.safetensors --set decay=1-sqrt
# ```


# %% tags=["hide-input"]
def run(rates):
    """Yield the weights along SGD on a loss that is linear in them."""
    generator = torch.Generator().manual_seed(SEED)
    weight = torch.randn(3, 4, generator=generator, requires_grad=True)
    yield weight.detach().clone()
    for rate in rates:
        inputs, directions = (torch.randn(8, n, generator=generator) for n in (4, 3))
        (gradient,) = torch.autograd.grad((inputs @ weight.T * directions).mean(), weight)
        weight.data -= rate * gradient
        yield weight.detach().clone()


for step, weight in enumerate(run([1, 1, 1])):
    save_file({"weight": weight}, f"step-{step}.safetensors")

# %% tags=["nbval-check-output"]
steps = [f"step-{i}.safetensors" for i in range(4)]
ml.merge_files("wsm", steps, "decayed.safetensors", decay="1-sqrt")

*_, decayed = run([1 - (i / 4) ** 0.5 for i in (1, 2, 3)])
print("equal to a run with decay:", close(load_file("decayed.safetensors")["weight"], decayed))

# %% [markdown]
# (recipe-grow)=
# ## Grow a trained model
#
# `ml.grow_files` makes folders of GPT-2 wider and deeper, and folders of BERT wider, without changing their outputs. `ml.grow` does
# the same with modules. The default copies units, and widths must be whole multiples; `width="mean"` accepts any width of a
# GPT-2. Set `noise=0.3` if you train the result, because equal copies have equal gradients and stay equal. [](50-growing)
# has the theory, and [](57-merging-or-warm-start) compares growth with training from scratch.

# %% tags=["hide-input"]
torch.manual_seed(SEED)
sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 9, "n_positions": 16}
config = transformers.GPT2Config(bos_token_id=1, eos_token_id=1, **sizes)
moved(transformers.GPT2LMHeadModel(config), 1).save_pretrained("small")

# %% tags=["nbval-check-output"]
config = transformers.GPT2Config.from_pretrained("small", n_embd=32, n_head=4, n_layer=3)
ml.grow_files("small", config, "larger", noise=0.3)

small, larger = map(AutoModelForCausalLM.from_pretrained, ("small", "larger"))
print(f"{larger.num_parameters() / small.num_parameters():.1f} times as many parameters")
print("the same logits:", close(small(text).logits, larger(text).logits))
