"""Trained vectors in place of columns of categories: in the model, its data, and what is made of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import evenflow
from evenflow import SequenceModel, create
from evenflow.lab.tasks import make
from evenflow.lab.training import train
from evenflow.models import DataColumn, DataSchema, Population, Predictor
from evenflow.models.column_embeddings import ColumnEmbeddings

COLUMNS = ((0, 4, 2), (2, 6, 3))
SITE = DataColumn("site", "category", categories=("a", "b", "c"), embedding=2, missing="mean")
FLOW = DataColumn("flow", mean=5.0, deviation=2.0)
DAY = DataColumn("day", "category", categories=("sunday", "weekday"), embedding=3)


def model_of(layer: str = "gru", outputs: int = 1, columns=COLUMNS, inputs: int = 4, **options) -> SequenceModel:
    width = inputs + sum(size - 1 for _, _, size in columns)
    torch.manual_seed(0)
    return SequenceModel(create(layer, width, 8), outputs, column_embeddings=columns, **options)


def drawn(steps: int = 7, rows: int = 5) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.stack(
        [
            torch.randint(4, (steps, rows)).float(),
            torch.randn(steps, rows),
            torch.randint(6, (steps, rows)).float(),
            torch.randn(steps, rows),
        ],
        -1,
    )


def test_vectors_take_the_place_of_columns():
    model, x = model_of(), drawn()
    first, second = (table.weight for table in model.columns.tables)
    expected = torch.stack(
        [
            torch.stack([torch.cat([first[int(p)], a[None], second[int(q)], b[None]]) for p, a, q, b in step])
            for step in x
        ]
    )
    assert torch.equal(model.columns(x), expected)
    torch.testing.assert_close(model(x)[0], model.read(model.layer(expected)[0][-1]))
    every = model_of(readout="every")
    y, _ = every(x)
    torch.testing.assert_close(every.step(x[-1], every(x[:-1])[1])[0], y[-1])
    assert model.parameter_counts()["embedding"] == 4 * 2 + 6 * 3


def test_vectors_are_trained_and_drawn_anew():
    model, x = model_of(), drawn()
    model(x)[0].sum().backward()
    first, second = (table.weight for table in model.columns.tables)
    seen = sorted(set(x[..., 2].flatten().int().tolist()))
    assert second.grad.abs().sum(1).nonzero().flatten().tolist() == seen
    before = first.detach().clone()
    model.reset_parameters(torch.Generator().manual_seed(5))
    assert not torch.equal(first, before)
    assert torch.equal(model_of().columns.tables[0].weight, before)


def test_a_population_has_vectors_of_its_own():
    models = [model_of("sgornn"), model_of("sgornn")]
    models[1].reset_parameters()
    x = torch.stack([drawn(), drawn().flip(1)])
    expected = torch.stack([model(each)[0] for model, each in zip(models, x, strict=True)])
    torch.testing.assert_close(Population(models)(x)[0], expected)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([(0, 4)], "column_embeddings must hold triples"),
        ([(0, 0, 2)], "values in column_embeddings must be a whole number of at least 1, got 0"),
        ([(2, 4, 2), (0, 4, 2)], "in the order of their places, got places"),
        ([(4, 4, 2)], "layer must have an input_size for all columns and vectors, got 5"),
    ],
)
def test_what_is_no_embedding(columns, message):
    with pytest.raises(ValueError, match=message):
        SequenceModel(create("rnn", 5, 4), 1, column_embeddings=columns)
    with pytest.raises(ValueError, match="left out with a vocabulary"):
        SequenceModel(create("rnn", 5, 4), 1, vocabulary=3, column_embeddings=[(0, 4, 2)])


def schema_of(*columns: DataColumn, **options) -> DataSchema:
    return DataSchema("regression", "last", columns, (DataColumn("y"),), **options)


def test_a_schema_gives_positions():
    schema = schema_of(FLOW, SITE, DAY)
    x = torch.tensor([[7.0, 2, 1], [5.0, np.nan, 0]], dtype=torch.float64)
    assert schema.scale_inputs(x).tolist() == [[1, 2, 1], [0, 3, 0]]  # 3 stands for a missing site
    assert schema.embedded == ((1, 4, 2), (2, 3, 3))
    assert schema.width == 3
    assert DataSchema.from_dict(schema.to_dict()) == schema
    with pytest.raises(ValueError, match="embedding belongs to a category, column 'x' is a number"):
        DataColumn("x", embedding=3)


def test_positions_that_are_known_ahead():
    day = DataColumn("day", "category", categories=("sunday", "weekday"), embedding=3, known=True)
    schema = DataSchema("next", "every", (day, FLOW), horizon=2)
    x = torch.tensor([[0, 7.0], [1, 5.0], [0, 3.0]], dtype=torch.float64)
    assert schema.scale_inputs(x).tolist() == [[1, 0, 1], [0, 2, 0], [2, 2, -1]]  # 2: beyond the end
    assert schema.embedded == ((0, 3, 3), (1, 3, 3))


def test_a_bundle_with_vectors(tmp_path):
    schema = schema_of(FLOW, SITE, DAY)
    predictor = Predictor(model_of(columns=schema.embedded, inputs=3), schema)
    x = np.stack([np.random.default_rng(0).normal(size=(4, 5)), np.full((4, 5), 2), np.ones((4, 5))], 2)
    x[1, 2, 1] = np.nan
    evenflow.save(predictor, tmp_path / "model")
    loaded = evenflow.load(tmp_path / "model")
    assert (loaded.predict(x) == predictor.predict(x)).all()
    x[1, 2, 1] = 3
    with pytest.raises(ValueError, match="whole numbers from 0 to 2 in site"):
        loaded.predict(x)
    with pytest.raises(ValueError, match="column_embeddings of the schema must be those of the model"):
        Predictor(model_of(columns=((1, 5, 2), (2, 3, 3)), inputs=3), schema)
    text = (tmp_path / "model" / "bundle.json").read_text()
    (tmp_path / "model" / "bundle.json").write_text(text.replace("     4,\n     2\n", "     4000000000,\n     2\n", 1))
    with pytest.raises(ValueError, match="no weight is larger than"):
        evenflow.load(tmp_path / "model")


@pytest.fixture
def sites(tmp_path):
    """The target of a sequence is a number that belongs to its site, one of 80."""
    draw = np.random.RandomState(0)
    values, rows = draw.randn(80) * 10, ["sequence,flow,site,target"]
    for n in range(320):
        rows += [f"{n},{draw.randn():.3f},site-{n % 80},{values[n % 80]:.3f}" for _ in range(2 + n % 3)]
    (tmp_path / "sites.csv").write_text("\n".join(rows))
    return f"csv:{tmp_path / 'sites.csv'}"


def test_words_of_a_file_are_embedded(sites, tmp_path):
    with pytest.raises(ValueError, match="holds 80 different words, and at most 50 can be inputs: embed=8 allows more"):
        make(sites).schema()
    task = make(sites, embed=4)
    assert (task.input_size, task.column_embeddings) == (5, ((1, 81, 4),))

    def trained(system: str, **options):
        config = {
            "task": {"name": sites, "embed": 4},
            "system": {"name": system, "hidden_size": 16},
            "training": {"steps": 400, "batch_size": 32, "lr": 0.03, "validate_every": 100, "device": "cpu", **options},
        }
        return train(config, tmp_path / "-".join([system, *options]), progress=False)

    assert trained("gru").best_metric < 4  # the deviation of the targets is 10
    assert evenflow.load(tmp_path / "gru").model.columns.sizes == ((1, 81, 4),)
    with pytest.raises(ValueError, match="precision must not be bf16-true with embed"):
        trained("gru", precision="bf16-true")
    with pytest.raises(ValueError, match="needs a recurrent system"):
        trained("mlp")
    with pytest.raises(ValueError, match="embed must be a whole number of at least 1, got 0"):
        make(sites, embed=0)


def test_the_module_alone():
    assert ColumnEmbeddings([(1, 50, 8)])(torch.tensor([[0.5, 49.0, -1.0]])).shape == (1, 10)
