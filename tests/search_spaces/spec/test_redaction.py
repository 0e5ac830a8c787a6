"""`redaction`: addresses without their secrets, in all notations."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.spec.load import parse_spec, spec_to_yaml
from search_spaces.spec.redaction import without_password, without_secrets

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (f"postgresql://ann:{SECRET}@db:5432/sweeps", "postgresql://ann@db:5432/sweeps"),
        (f"postgresql+psycopg://ann:{SECRET}@db/x", "postgresql+psycopg://ann@db/x"),
        (f"postgresql://ann:{SECRET}/{SECRET}@db:5432/x", "postgresql://ann@db:5432/x"),
        (f"postgresql://ann:{SECRET}@{SECRET}@db/x", "postgresql://ann@db/x"),
        (f"postgresql://ann:{SECRET}?{SECRET}@db/x", "postgresql://ann@db/x"),
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
        ("postgresql://ann@db:5432/x", None),
        ("http://mlflow:5000", None),
        ("http://[::1]:5000/a@b", None),
        ("sqlite:////tmp/a:b@c.db", None),
        ("sqlite:///runs/study.db", None),
        ("databricks://profile", None),
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


def test_texts_lose_the_secrets_of_all_addresses() -> None:
    text = without_secrets(
        "a%2Fb-cd and a/b-cd and swordfish",
        "postgresql://ann:a%2Fb-cd@db/x",
        None,
        "http://mlflow?token=swordfish",
    )

    assert text == "*** and *** and ***"


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
