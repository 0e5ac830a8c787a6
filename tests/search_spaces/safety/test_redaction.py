"""`redaction`: addresses without their secrets, in all notations."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.safety.redaction import secret_values, without_password, without_secrets
from search_spaces.specification.load import parse_spec, spec_to_yaml

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (f"postgresql://ann:{SECRET}@db:5432/sweeps", "postgresql://ann@db:5432/sweeps"),
        (f"postgresql://ann:{SECRET}/{SECRET}@db:5432/x", "postgresql://ann@db:5432/x"),
        (f"postgresql://ann:{SECRET}@{SECRET}@db/x", "postgresql://ann@db/x"),
        (f"postgresql://:{SECRET}@db/x", "postgresql://@db/x"),
        (
            f"postgresql://db:5432/x?user=ann&password={SECRET}&sslmode=require",
            "postgresql://db:5432/x?user=ann&sslmode=require",
        ),
        (f"postgresql://db/x?sslpassword={SECRET}", "postgresql://db/x"),
        (f"http://ann:{SECRET}@mlflow:5000", "http://ann@mlflow:5000"),
        (f"ann:{SECRET}@db.example", "ann@db.example"),
        ("postgresql://db:5432/x?user=ann@corp.example", None),
        ("postgresql://db:5432/x", None),
        ("http://[::1]:5000/a@b", None),
        ("sqlite:////tmp/a:b@c.db", None),
        ("no url at all", None),
        ("", None),
    ],
)
def test_only_the_password_goes(address: str, kept: str | None) -> None:
    assert without_password(address) == (address if kept is None else kept)
    assert SECRET not in without_password(address)


@given(
    st.text(
        min_size=4, max_size=20, alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"])
    )
)
def test_no_quoted_password_is_left_over(password: str) -> None:
    address = f"postgresql://ann:{quote(password, safe='')}@db:5432/sweeps"

    assert without_password(address) == "postgresql://ann@db:5432/sweeps"
    assert (
        password
        not in without_secrets(f"cannot log in with {password}!", address).partition(
            "cannot log in with "
        )[2]
    )


def test_copies_of_a_specification_hold_no_password() -> None:
    spec = parse_spec(
        f"model: gpt2\ntrain: {{global_batch: 8}}\nstudy: {{storage: 'postgresql://a:{SECRET}@d/x'}}"
        f"\ntracking: {{uri: 'http://a:{SECRET}@mlflow'}}",
        source="test",
    )

    copy = parse_spec(spec_to_yaml(spec), source="copy")

    assert SECRET not in spec_to_yaml(spec)
    assert copy.study.storage == "postgresql://a@d/x"
    assert copy.tracking.uri == "http://a@mlflow"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("postgresql://ann:S3CRET@db/x", "postgresql://ann:***@db/x"),
        ("redis://:S3C/RET x@db:6379/0", "redis://:***@db:6379/0"),
        ("AWS_SECRET_ACCESS_KEY=S3C/RET+1 and more", "AWS_SECRET_ACCESS_KEY=*** and more"),
        ("PGPASSWORD=S3CRET psql", "PGPASSWORD=*** psql"),
        ("{'password': 'S3CRET it is', 'port': 5}", "{'password': '***', 'port': 5}"),
        (r"{\"api_key\": \"S3CRET\"}", r"{\"api_key\": \"***\"}"),
        ("Authorization: Bearer S3CRET.S3CRET", "Authorization: Bearer ***"),
        ("by hf_S3CRETS3CRETS3CRET1", "by ***"),
        ("sk-proj-S3CRETSECRETSECRET", "***"),
        ("AKIAS3CRETS3CRETS3CR", "***"),
        ("https://b/x?X-Amz-Signature=S3CRET&a=1", "https://b/x?X-Amz-Signature=***&a=1"),
        ("https://x?token=S3CRET&a=1: password=S3CRET, api_key: S3CRET", None),
        (
            "-----BEGIN PRIVATE KEY-----\nS3CRET\n-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----",
        ),
    ],
)
def test_s5_secrets_that_libraries_repeat_are_hidden(text: str, left: str | None) -> None:
    redacted = without_secrets(text)

    assert "S3CRET" not in redacted
    assert left is None or redacted == left
    assert without_secrets(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        *("the token budget is used", "ends at 10:30 @ noon", "http://host:5000/path?mail=a@b"),
        *("pad_token_id=0, max_new_tokens=128", "sqlite:///runs/study.db", "token: 17"),
        "does not accept the token: set RAY_AUTH_TOKEN",
    ],
)
def test_messages_without_secrets_stay_as_they_are(text: str) -> None:
    assert without_secrets(text) == text


def test_s5_values_of_secret_variables_are_hidden_wherever_they_are() -> None:
    environment = {
        "WANDB_API_KEY": "0123456789abcdef",
        "DB": "mysql://ann:tr0ub4dor@db/x",
        "PWD": "/home/ann/project",
        "TOKENIZERS_PARALLELISM": "falsehood",
        "SHORT_TOKEN": "abc",
        "HF_TOKEN": "",
    }
    values = secret_values(environment)

    assert values == {"0123456789abcdef", "tr0ub4dor"}
    assert without_secrets("got 0123456789abcdef/tr0ub4dor!", values=values) == "got ***/***!"
