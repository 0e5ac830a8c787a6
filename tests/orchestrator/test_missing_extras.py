"""Errors of features whose optional package is missing: one sentence each."""

import json
import sys

import pytest

from search_spaces.errors import OPTIONAL_PACKAGES
from tests.absent import OPTIONAL, environment_without
from tests.commands import run_command

# what is done in one process without the module; in this order, since a package that could be
# imported stays so
STATEMENTS = {
    "accelerate": """
from orchestrator.export.accelerate import export
export(None)
""",
    "optuna": "import orchestrator.study",
    "sqlalchemy": "import orchestrator.study",
    "psycopg": """
from orchestrator.study.storage import engine_options
engine_options("postgresql://db/studies")
""",
    "mlflow": """
from orchestrator.tracking.mlflow_view import Pages, ui_command
ui_command(spec, Pages(trials="http://127.0.0.1:5000"))
""",
    "mcp": """
from orchestrator.cli.mcp import mcp
mcp()
""",
    "boto3": """
from orchestrator.tracking.mlflow_store import check_artifacts
check_artifacts("s3://bucket/folder", spec)
""",
    "ray": """
from orchestrator.cluster.runtime import connected
with connected(spec):
    pass
""",
    "peft": """
from workers.models.load import describe
from search_spaces.specification.sections import LoraSpec
describe(spec.model, spec.train.model_copy(update={"method": "lora", "lora": LoraSpec()}))
""",
    "deepspeed": """
from workers.parallel.deepspeed_features import missing_for_deepspeed
raise UserError(missing_for_deepspeed())
""",
    "pyarrow": """
from workers.data.tables import table_rows
next(table_rows(None, is_parquet=True, reading=None))
""",
    "torchao": """
from search_spaces.errors import missing_extra
raise UserError(missing_extra("torchao"))
""",
    "torch_tpu": """
from workers.worker import pick_device
pick_device("tpu", 0)
""",
    "bitsandbytes": """
from search_spaces.errors import missing_extra
raise UserError(missing_extra("bitsandbytes"))
""",
}
SENTENCES = {
    "optuna": "Optuna is not installed; run `pip install 'plimsoll-tune[ray]'`",
    "sqlalchemy": "SQLAlchemy is not installed; run `pip install 'plimsoll-tune[ray]'`",
    "psycopg": "psycopg is not installed; run `pip install 'plimsoll-tune[postgres]'`",
    "mlflow": "MLflow is not installed; run `pip install 'plimsoll-tune[mlflow]'`",
    "mcp": "MCP is not installed; run `pip install 'plimsoll-tune[mcp]'`",
    "boto3": "boto3 is not installed; run `pip install 'plimsoll-tune[s3]'`",
    "ray": "Ray is not installed; run `pip install 'plimsoll-tune[ray]'`",
    "peft": "PEFT is not installed; run `pip install 'plimsoll-tune[lora]'`",
    "deepspeed": "DeepSpeed is not installed; run `pip install 'plimsoll-tune[deepspeed]'`",
    "accelerate": "Accelerate is not installed; run `pip install 'plimsoll-tune[accelerate]'`",
    "pyarrow": "pyarrow is not installed; run `pip install 'plimsoll-tune[data]'`",
    "torchao": "torchao is not installed; run `pip install 'plimsoll-tune[torchao]'`",
    "torch_tpu": "cluster.device is tpu, but torch_tpu is not installed; run"
    " `pip install 'plimsoll-tune[tpu]'`",
    "bitsandbytes": "bitsandbytes is not installed; run `pip install 'plimsoll-tune[8bit]'`",
}
SCRIPT = f"""
import json, sitecustomize
from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec

spec = SweepSpec.model_validate({{"model": {{"name": "gpt2"}}, "train": {{"global_batch": 1}}}})
sentences = {{}}
for module, statements in {STATEMENTS}.items():
    sitecustomize.ABSENT.clear()
    sitecustomize.ABSENT.add(module)
    try:
        exec(statements)
    except UserError as error:
        sentences[module] = str(error)
print(json.dumps(sentences))
"""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the output of each feature without its package, by the package's module."""
    environment = environment_without((), tmp_path_factory.mktemp("site"))
    ended = run_command([sys.executable, "-c", SCRIPT], environment=environment, seconds=200)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("module", SENTENCES)
def test_a_feature_without_its_package_is_one_sentence(
    module: str, sentences: dict[str, str]
) -> None:
    assert sentences[module] == SENTENCES[module]


def test_each_optional_package_has_a_sentence_and_a_test() -> None:
    modules = {package.module for package in OPTIONAL_PACKAGES}

    assert modules == SENTENCES.keys()
    assert modules | {"greenlet"} == OPTIONAL  # which Optuna takes if it is there
