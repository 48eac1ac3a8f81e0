"""Generate sequences from a trained language or music model, one step at a time with the state carried along."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow.checks import number, whole_number
from evenflow.models.predictor import Predictor
from evenflow.models.sequence_model import SequenceModel


def generate(
    model: SequenceModel | Predictor,
    prompt: Tensor,
    steps: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue `prompt` by a number of steps: the first ones that `stream` yields, stacked.

    Shapes:
        prompt ``(T, B)`` symbols, or ``(T, B, N)`` notes; result ``(steps, B)`` or ``(steps, B, N)``, without the
        prompt. A prompt without the dimension B gives a result without it. For a `Predictor` numbers ``(T, B, I)``,
        ``(T, I)`` or, of one column, ``(T,)``.

    Args:
        model: a `SequenceModel` with readout ``"every"`` and as many outputs as symbols, or as inputs; or
            a `Predictor` that predicts the next step, which continues series of numbers in the user's units.
        prompt: the start of the sequence.
        steps: how many steps to generate, at least 1.
        temperature, top_k, greedy, generator: see `stream`; a series of numbers is not drawn and takes none.

    >>> model = SequenceModel(create("sgornn", 16, 64), 50, readout="every", vocabulary=50)
    >>> generate(model, torch.tensor([4, 8, 15]), 100, temperature=0.8).shape
    torch.Size([100])
    """
    whole_number("steps", steps, 1)
    if isinstance(model, Predictor):
        if temperature != 1 or top_k is not None or greedy or generator is not None:
            raise ValueError("temperature, top_k, greedy and generator go with symbols and notes, not with a forecast")
        return _continued(model, prompt, steps)
    following = stream(model, prompt, temperature=temperature, top_k=top_k, greedy=greedy, generator=generator)
    return torch.stack(list(islice(following, steps)))


def _continued(predictor: Predictor, prompt: Tensor, steps: int) -> Tensor:
    """The forecast of series ``(T, B, I)``, ``(T, I)`` or ``(T,)``, in the same form."""
    x = torch.as_tensor(prompt)
    if not 1 <= x.dim() <= 3:
        raise ValueError(f"prompt must be (T, B, I), (T, I) or (T,), got {tuple(x.shape)}")
    rows = x[:, None, None] if x.dim() == 1 else x[:, None] if x.dim() == 2 else x
    generated = torch.from_numpy(predictor.forecast(rows.transpose(0, 1), steps)).transpose(0, 1)
    return generated[:, 0, 0] if x.dim() == 1 else generated[:, 0] if x.dim() == 2 else generated


def stream(
    model: SequenceModel,
    prompt: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    greedy: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Continue `prompt` without end: each step is drawn from the model's outputs and is the next input.

    The prompt is read in one pass; after it the model reads one step at a time and carries its state. The model is
    copied at the start, in evaluation mode, with every mapped matrix computed once.

    With a vocabulary a step is one symbol, drawn from ``softmax(y / temperature)``. Without one a step is a row of N
    notes, each of them on with probability ``σ(y / temperature)``.

    Shapes:
        prompt ``(T, B)`` whole numbers, or ``(T, B, N)`` zeros and ones; B may be left out. Each step ``(B)``, or
        ``(B, N)``.

    Args:
        model: a `SequenceModel` with readout ``"every"`` and as many outputs as symbols, or as inputs.
        prompt: the start of the sequence.
        temperature: above 0; below 1 likely symbols and notes become more likely.
        top_k: draw from the k most likely symbols only; of notes, only the k most likely can be on.
        greedy: pick the most likely symbol, or the notes with a probability above 1/2; nothing is drawn.
        generator: where random numbers are drawn from, instead of torch's global generator; on any device. The same
            seed on the same device gives the same steps.

    >>> model = SequenceModel(GRU(16, 32), 10, readout="every", vocabulary=10)
    >>> symbols = stream(model, torch.tensor([1, 2, 3]), greedy=True)
    >>> len([next(symbols) for _ in range(5)])
    5
    """
    _check_model(model)
    batched = _check_prompt(model, prompt)
    number("temperature", temperature, above=0)
    width = model.output.out_features
    if top_k is not None:
        whole_number("top_k", top_k, 1)
        if top_k > width:
            raise ValueError(f"top_k must be at most {width}, the number of outputs, got {top_k}")
    if greedy and (temperature != 1 or (top_k is not None and model.embedding is not None)):
        other = f"temperature={temperature}" if temperature != 1 else f"top_k={top_k}"
        raise ValueError(f"greedy draws nothing, so it cannot be combined with {other}")
    draw = _notes if model.embedding is None else _symbols

    def pick(y: Tensor) -> Tensor:
        return draw(y / temperature, top_k, greedy, generator)

    return _steps(_frozen(model), prompt if batched else prompt.unsqueeze(1), batched, pick)


def _steps(model: SequenceModel, x: Tensor, batched: bool, pick: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """Run the model on the prompt x ``(T, B)`` or ``(T, B, N)``, then on each step that `pick` draws."""
    like = model.output.weight
    x, state = x.to(like.device, like.dtype if model.embedding is None else torch.int64), None
    while True:
        with torch.no_grad():  # not around the yield, where it would reach the caller
            if state is None:
                outputs, state = model(x)
                y = outputs[-1]
            else:
                y, state = model.step(x, state)
            if not y.isfinite().all():
                raise ValueError("the model's outputs must be finite to generate from them, got infinite or nan values")
            x = pick(y.double()).to(x.dtype)
        yield x if batched else x.squeeze(0)


def _frozen(model: SequenceModel) -> SequenceModel:
    """A copy in evaluation mode whose maps are replaced by their matrices: each step is one call of the model."""
    copied = copy.deepcopy(model).eval()
    for part in list(copied.modules()):
        if parametrize.is_parametrized(part):
            # Not `maps.detach`: it would change the class, which the copy shares with the original.
            maps: nn.ModuleDict = part.parametrizations  # type: ignore[assignment]
            for name in maps:
                maps[name] = _FixedMatrix(getattr(part, name).detach())
    return copied


class _FixedMatrix(nn.Module):
    """Returns a constant matrix, in the place of a map."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self) -> Tensor:
        return self.matrix  # type: ignore[return-value]


def _symbols(y: Tensor, top_k: int | None, greedy: bool, generator: torch.Generator | None) -> Tensor:
    """One symbol for each row ``(B)`` of y ``(B, V)``; argmax of y + Gumbel noise is a draw from softmax(y)."""
    if greedy:
        return y.argmax(-1)
    return (_likeliest(y, top_k) - _uniform(y, generator).log().neg().log()).argmax(-1)


def _notes(y: Tensor, top_k: int | None, greedy: bool, generator: torch.Generator | None) -> Tensor:
    """Notes on or off ``(B, N)`` from y ``(B, N)``."""
    p = _likeliest(y, top_k).sigmoid()
    return p > (0.5 if greedy else _uniform(y, generator))


def _likeliest(y: Tensor, top_k: int | None) -> Tensor:
    """y with all but the `top_k` largest of each row at -∞."""
    if top_k is None:
        return y
    top = y.topk(top_k, -1)
    return torch.full_like(y, -math.inf).scatter(-1, top.indices, top.values)


def _uniform(y: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers from [0, 1) in the shape of y, drawn where the generator is."""
    where = y.device if generator is None else generator.device
    return torch.rand(y.shape, generator=generator, dtype=y.dtype, device=where).to(y.device)


def _check_model(model: SequenceModel) -> None:
    if not isinstance(model, SequenceModel):
        raise ValueError(f"model must be a SequenceModel, got {type(model).__name__}")
    if model.readout != "every":
        raise ValueError(f"model must have readout 'every', an output at each step, got {model.readout!r}")
    if getattr(model.layer, "bidirectional", False):
        raise ValueError("model must not be bidirectional: its reverse direction needs the steps to come")
    outputs = model.output.out_features
    if model.embedding is not None and outputs != model.embedding.num_embeddings:
        raise ValueError(
            f"model must have one output for each of its {model.embedding.num_embeddings} symbols, got {outputs}"
        )
    if model.embedding is None and outputs != model.layer.input_size:
        raise ValueError(
            f"model must have as many outputs as its {model.layer.input_size} inputs, or a vocabulary, got {outputs}"
        )


def _check_prompt(model: SequenceModel, prompt: Tensor) -> bool:
    """True if the prompt has a batch dimension; a ValueError if the model cannot read it."""
    if not isinstance(prompt, Tensor):
        raise ValueError(f"prompt must be a tensor, got {type(prompt).__name__}")
    symbols = model.embedding is not None
    form = "(T, B) or (T)" if symbols else f"(T, B, N) or (T, N) with N = {model.output.out_features}"
    dimensions = prompt.dim() + symbols
    if dimensions not in (2, 3) or not (symbols or prompt.shape[-1] == model.output.out_features):
        raise ValueError(f"prompt must be {form}, got {tuple(prompt.shape)}")
    if len(prompt) == 0:
        raise ValueError(f"prompt must have at least one step, got {tuple(prompt.shape)}")
    if symbols:
        if prompt.is_floating_point() or prompt.is_complex() or prompt.dtype is torch.bool:
            raise ValueError(f"prompt must hold whole numbers for a model with a vocabulary, got {prompt.dtype}")
        last = model.output.out_features - 1
        if prompt.numel() and not 0 <= int(prompt.min()) <= int(prompt.max()) <= last:
            wrong = prompt[(prompt < 0) | (prompt > last)][0].item()
            raise ValueError(f"prompt must hold symbols from 0 to {last}, got {wrong}")
    elif not ((prompt == 0) | (prompt == 1)).all():
        wrong = prompt[(prompt != 0) & (prompt != 1)][0].item()
        raise ValueError(f"prompt must hold zeros and ones, a note off or on, got {wrong:g}")
    return dimensions == 3
