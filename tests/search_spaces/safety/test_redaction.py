"""`redaction`: addresses without their secrets, in all notations."""

import ast
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.safety.redaction import (
    MOST_CHARACTERS,
    secret_values,
    without_password,
    without_secrets,
)
from search_spaces.specification.load import parse_spec, spec_to_yaml

SECRET = "hunter2"
ROOT = Path(__file__).parents[3]
PATTERNS = (
    "redaction.py",
    "provenance.py",
    "yaml_reader.py",
)  # files with patterns of secrets, or \ud800
SECONDS = 5.0  # for 10 MB; far more than it takes


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


# each with S3CRET in it
FORMS = (
    *("x?options=PGPASSWORD%3DS3CRET", "%50GPASS%57ORD=S3CRET", "a=PGPASSWORD%253DS3CRET"),
    *(
        "DB_PASS=S3CRET",
        "dbpass: S3CRET",
        "MYSQL_PWD=S3CRET",
        "Uid=ann;Pwd=S3CRET;",
        "pgPass = S3CRET",
    ),
    *(
        "MyPassword1=S3CRET",
        "clientSecret=S3CRET",
        "export STRIPE_KEY=S3CRETab",
        "ssh-key: S3CRETxx",
    ),
    *(
        "GH_TOKEN_2=S3CRETx",
        "api_token: S3CRETS",
        "{'user': 'a', 'pass': 'S3CRET'}",
        "TOKEN_1=S3CRETx",
    ),
    "npm_S3CRETabcdefghijklmnopqrstuvwx1234567",
    "AIzaS3CRETabcdefghijklmnopqrstuvwxyz-_12",
    "ghp_S3CRETS3CRETS3CRETS3CRET12",
    *("xoxb-S3CRET-12345-abc", "https://hooks.slack.com/services/T00/B00/S3CRETS3CRETS3CRET"),
    "Endpoint=https;AccountName=a;AccountKey=S3CRET/abc+12==;EndpointSuffix=core",
    *("psql --password S3CRET", "['psql', '--password', 'S3CRET']", "--api-key=S3CRETxyz"),
    *(
        "machine h login ann password S3CRET",
        "machine h\n  login a\n  account b\n  password S3CRET",
    ),
    *("default login a password S3CRET", "machine h password S3CRET login a"),
    *(
        "Cookie: sid=S3CRET; b=S3CRET",
        "{'Set-Cookie': 'a=S3CRET; Path=/'}",
        "cookies={'sid': 'S3CRET'}",
    ),
    *(
        "//registry.npmjs.org/:_authToken=S3CRETswordfish",
        "_auth=S3CRETabc123==",
        "JSESSIONID=S3CRET12",
    ),
    *("Authorization: S3CRETx", "'Authorization': 'token S3CRETx'", "X-Api-Key: S3CRET"),
    *("curl -u ann:S3CRET http://x", "[('DB_PASS', 'S3CRET')]", "<password>S3CRET</password>"),
    *("b'password': b'S3CRET'", "ALTER ROLE a PASSWORD 'S3CRET'", "IDENTIFIED BY 'S3CRET'"),
    *(
        'password="S3CRET',
        "password is S3CRET",
        "PASSWORD => S3CRET",
        "postgresql://a:S3C%52ET%2F@db/x",
    ),
    *("db?sig=S3CRET&x=1", "SharedAccessKey=S3CRETabcd="),
    *("pw=S3CRET", "Uid=ann;user_pw = 'S3CRET'", "sshpass -p S3CRET ssh h", "sshpass -pS3CRET ssh"),
    *("wandb login S3CRETS3CRETS3CRET1", "wandb login --relogin S3CRETS3CRETS3CRET1"),
)


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("around", ["{}", "error near {} in line 3", "x" * 200 + " {}\n"])
def test_n9_secrets_are_hidden_by_name_and_form(text: str, around: str) -> None:
    redacted = without_secrets(around.format(text))

    assert "S3C" not in redacted
    assert "***" in redacted
    assert without_secrets(redacted) == redacted


WORDS = (
    *("tokens_per_second=123.4", "key_value_heads: 8", "max_tokens: 512", "tokenizer: gpt2"),
    *("pad_token='<|endoftext|>'", "eos_token=</s>", "KeyError: 'lm_head.weight'", "bypass=True"),
    *("size mismatch for h.0.attn.key.weight: copying a param with shape", "past_key_values=None"),
    *("forward_pass: 0.32s", "PWD=/home/ann", "unexpected keyword argument 'foo'", "key: layer12"),
    *(
        "missing keys: ['a.b1.c']",
        "tokenizer_revision: 3f2a9c4d5e",
        "--max-tokens 512 --tokenizer g",
    ),
    *("expected one of 'password', 'token'", 'password authentication failed for user "ann"'),
    *(
        "passes=3 passed: 12",
        "sort_key: name1a2b3c",
        "token_type_ids: [0]",
        "monkeypatch: a1b2c3d4",
    ),
    *("run wandb login to authenticate", "pw=64", "pwconv=weights", "dpw: a1"),
    *("num_key_value_heads=8, head_dim=128", "100%20 done 50%41", "hf_deepspeed_config is None"),
    *(
        "check the credentials: MLFLOW_TRACKING_TOKEN",
        "password=${DB_PASS}",
        "use --token or set it",
    ),
)


@pytest.mark.parametrize("text", WORDS)
def test_n9_words_of_configurations_are_no_secrets(text: str) -> None:
    assert without_secrets(text) == text


def test_n9_no_message_or_label_of_the_product_looks_like_a_secret() -> None:
    texts = list[str]()
    for package in ("orchestrator", "search_spaces", "workers", "plimsoll"):
        for file in (ROOT / package).rglob("*"):
            if file.suffix == ".py" and file.name not in PATTERNS:
                texts += _constants(file.read_text())
            elif file.name == "help.yaml":  # whose keys are names of options
                texts += [line.partition(": ")[2] for line in file.read_text().splitlines()]
            elif file.suffix in (".yaml", ".jinja") and file.name != "secrets.yaml":
                texts += file.read_text().splitlines()

    assert len(texts) > 10_000
    assert [text for text in texts if without_secrets(text) != text[:MOST_CHARACTERS]] == []


def _constants(source: str) -> list[str]:
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [node.value for node in nodes if isinstance(node.value, str)]


HOSTILE = (
    *("x", "token", "password=", "://u:", "a:", "://u:x@", "key='", 'key="', "key=\\'", "key=key"),
    *(
        "token ",
        "%25",
        "\udcff",
        "-----BEGIN PRIVATE KEY-----",
        "cookie: ",
        "login a ",
        "hf_",
        "eyJ",
    ),
    *("-", "_", "=", "'", "\\", "authorization: b", "A", "%", " ", "\n", "secret" + "-" * 50),
)


@pytest.mark.parametrize("part", HOSTILE)
def test_n3_ten_megabytes_of_anything_take_little_time(part: str) -> None:
    text = part * (10_000_000 // len(part))
    began = time.process_time()

    redacted = without_secrets(text, values=["tr0ub4dor"])

    assert time.process_time() - began < SECONDS
    assert redacted.encode()
    assert len(redacted) < 7 * MOST_CHARACTERS  # where each is written as an escape


@pytest.mark.parametrize("part", HOSTILE)
def test_n3_time_grows_with_the_length_below_the_bound(part: str) -> None:
    def seconds(length: int) -> float:
        began = time.process_time()
        without_secrets(part * (length // len(part)))
        return time.process_time() - began

    quarter = min(seconds(MOST_CHARACTERS // 4) for _ in range(3))
    whole = min(seconds(MOST_CHARACTERS) for _ in range(3))

    assert whole < 8 * quarter + 0.01  # 16 times if it were quadratic


@given(st.text(max_size=60), st.integers(0, 2 * MOST_CHARACTERS))
def test_n3_a_long_message_is_cut_where_no_secret_is_divided(around: str, at: int) -> None:
    secret = "hf_" + "S3CRET" * 6
    text = "word " * (at // 5) + f"{around} {secret} {around}" + " word" * MOST_CHARACTERS

    redacted = without_secrets(text)

    assert "S3CRET" not in redacted
    assert redacted.startswith("word " * (at // 5 > 0))
    assert redacted.endswith(" word")


def test_n3_a_key_whose_beginning_is_cut_off_is_hidden() -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "S3CRETS3CRET+/\n" * 5_000 + "-----END PRIVATE KEY-----"

    assert "S3CRET" not in without_secrets(key)


def test_n4_half_a_character_is_written_as_an_escape() -> None:
    assert without_secrets("no file caf\udce9.txt") == r"no file caf\udce9.txt"


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
        "DB_PASS": "swordfish sea",
        "mysql_pwd": "0ctopus!ink",
        "HF_TOKEN": "",
    }
    values = secret_values(environment)

    assert values == {"0123456789abcdef", "tr0ub4dor", "swordfish sea", "0ctopus!ink"}
    assert without_secrets("a=swordfish+sea&b=0ctopus%21ink", values=values) == "a=***&b=***"
    assert without_secrets("got 0123456789abcdef/tr0ub4dor!", values=values) == "got ***/***!"
