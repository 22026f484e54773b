"""The chat-completions format as servers write it and break it, and when to try again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http.completion import (
    NOT_ALIGNED,
    Completion,
    TokenCounts,
    UnreadableBody,
    read,
    read_logprobs,
    request_body,
    words,
)
from anmi_ray.judging.http.retry import backoff, of_status, retry_after

CONFIG = EndpointConfig(base_url="http://127.0.0.1:1/v1", model="m")
FIELDS = ["choices", "message", "content", "logprobs", "top_logprobs", "token", "logprob", "usage", "prompt_tokens"]
FIELDS += ["error", "model"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def body(**fields: Any) -> bytes:
    message = {"role": "assistant", "content": "A"}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **fields}).encode()


def test_a_request_leaves_out_what_is_null_and_passes_extra_through() -> None:
    config = CONFIG.model_copy(update={"max_tokens": None, "temperature": None, "extra": {"reasoning_effort": "low"}})
    messages = [{"role": "user", "content": "naïve \ud800?"}]
    assert json.loads(request_body(config, messages)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "naïve ??"}],
        "stream": False,
        "reasoning_effort": "low",
    }
    full = json.loads(request_body(CONFIG.model_copy(update={"seed": 3, "logprobs": 5}), messages))
    assert (full["max_tokens"], full["temperature"], full["seed"]) == (16, 0.0, 3)
    assert (full["logprobs"], full["top_logprobs"]) == (True, 5)


def test_tokens_include_hidden_reasoning_and_cached_ones_are_prompt() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 61}
    answer = read(body(usage=usage | {"prompt_tokens_details": {"cached_tokens": 99}}))
    assert isinstance(answer, Completion)
    assert answer.tokens == TokenCounts(10, 10, 51)
    assert TokenCounts(10, 10, 51).total == 61
    for nothing in (None, {}, {"prompt_tokens": "10"}, {"prompt_tokens": True}, {"prompt_tokens": -4}):
        answer = read(body(usage=nothing))
        assert isinstance(answer, Completion)
        assert answer.tokens is None


def test_first_token_logprobs_keep_the_likelier_of_equals_and_drop_what_is_no_number() -> None:
    top = [
        {"token": "A", "logprob": -0.5},
        {"token": "A", "logprob": -0.2},
        {"token": "B", "logprob": float("-inf")},
        {"token": "C", "logprob": float("nan")},
        {"token": 5, "logprob": -1.0},
        {"token": "\udcff", "logprob": -3},
    ]
    choice = {
        "message": {"content": "A"},
        "logprobs": {"content": [{"token": " A", "logprob": -4.0, "top_logprobs": top}]},
    }
    answer = read(json.dumps({"choices": [choice]}).encode())
    assert isinstance(answer, Completion)
    assert answer.logprobs == {"A": -0.2, "?": -3.0, " A": -4.0}


REASON = "A passage that names the city — the second does. So B."
ALIGNED: list[tuple[list[str], dict[str, str], int]] = [  # tokens, the message, which token the answer begins with
    (["B"], {"content": "B"}, 0),
    (["\n\n", " B"], {"content": "\n\n B"}, 1),
    (["B", "<|im_end|>"], {"content": "B"}, 0),
    (["ĠB", "</s>"], {"content": "B"}, 0),
    (["B", ".", " It", " names", " it"], {"content": "B. It names it"}, 0),
    (["Answer", ":", " B"], {"content": "Answer: B"}, 0),
    (["B", " ", "\ufffd", "\ufffd", "."], {"content": "B 🙂."}, 0),
    # a reasoning parser took the reasoning out of the text, and shows it, or does not
    (["<think>", REASON, "</think>", "\n\n", "B"], {"content": "B", "reasoning_content": REASON}, 4),
    (["A", " passage", " that", " names", "B"], {"content": "\n\nB", "reasoning_content": REASON}, 4),
    (["A", " because", " B", "</think>", "A", "<｜end▁of▁sentence｜>"], {"content": "A"}, 4),
    (["<|channel|>", "final", "<|message|>", "B", "<|return|>"], {"content": "B", "reasoning": "B?"}, 3),
    (["B"], {"content": "B", "reasoning_content": "A passage … So B."}, 0),  # only the answer's tokens are given
    # reasoning left in the text
    (["<think>", "A", " or", " B", "</think>", "\n", "B"], {"content": "<think>A or B</think>\nB"}, 6),
]
OTHER_TEXT: list[tuple[list[str], dict[str, str]]] = [
    (["A"], {"content": "B"}),
    (["A", " passage", " that"], {"content": "B", "reasoning_content": REASON}),
    (["A"], {"content": "A", "reasoning_content": REASON}),  # the first token alone, of the reasoning
    (["<think>", "A"], {"content": "A", "reasoning_content": REASON}),
    (["<think>"], {"content": "<think>\nOkay.\n</think>\n\nA"}),
    (["<think>", "So", " A"], {"content": "<think>So A or B</think>A"}),
    (["So", " B.B"], {"content": "B"}),
    (["文档", "B"], {"content": "文档B"}),
    (["B", " and"], {"content": "B"}),
]


def answered(tokens: list[str], message: dict[str, str], **fields: Any) -> bytes:
    """A body whose n-th token has log-probability -n."""
    positions = [
        {"token": t, "logprob": -n, "top_logprobs": [{"token": t, "logprob": -n}], **fields}
        for n, t in enumerate(tokens)
    ]
    return body(choices=[{"message": message, "logprobs": {"content": positions}}])


@pytest.mark.parametrize(("tokens", "message", "start"), ALIGNED)
def test_log_probabilities_are_those_of_the_answers_first_token(
    tokens: list[str], message: dict[str, str], start: int
) -> None:
    answer = read_logprobs(answered(tokens, message))
    assert isinstance(answer, Completion)
    assert answer.logprobs == {tokens[start]: float(-start)}


@pytest.mark.parametrize(("tokens", "message"), OTHER_TEXT)
def test_log_probabilities_of_other_text_are_a_lasting_failure(tokens: list[str], message: dict[str, str]) -> None:
    answer = read_logprobs(answered(tokens, message))
    assert (answer.reason, answer.transient) == (NOT_ALIGNED, False) if isinstance(answer, UnreadableBody) else False


def test_bytes_of_tokens_go_before_their_texts() -> None:
    dash = [{"token": "bytes:\\xe2", "bytes": [0xE2]}, {"token": "bytes:\\x80\\x94", "bytes": [0x80, 0x94]}]
    tokens = [{"token": "A", "bytes": [65], "logprob": -0.5}, *dash]
    answer = read(body(choices=[{"message": {"content": "A —"}, "logprobs": {"content": tokens}}]))
    assert isinstance(answer, Completion)
    assert answer.logprobs == {"A": -0.5}
    for odd in ([300], [-1], ["A"], [[65]], {}, 65):
        assert isinstance(read(answered(["A"], {"content": "A"}, bytes=odd)), Completion)


@pytest.mark.parametrize(
    ("message", "finish", "reason", "transient"),
    [
        ({"content": None}, "stop", "empty answer", True),
        ({"content": " \n"}, "stop", "empty answer", True),
        ({"content": ""}, "length", "max_tokens before an answer", False),
        ({"content": None, "refusal": "I cannot"}, "stop", "refused: model", False),
        ({"content": "A"}, "content_filter", "refused: content filter", False),
        ({"content": "A"}, "error", "error in the answer", True),
    ],
)
def test_bodies_without_an_answer_are_named(message: object, finish: str, reason: str, transient: bool) -> None:
    answer = read(body(choices=[{"message": message, "finish_reason": finish}], usage={"prompt_tokens": 7}))
    assert answer == UnreadableBody(reason, transient, TokenCounts(7, 0, 0))


def test_an_answer_of_a_megabyte_is_not_read() -> None:
    answer = read(body(choices=[{"message": {"content": "A" * 1_000_000}}], usage={"prompt_tokens": 7}))
    assert answer == UnreadableBody("answer too long", False, TokenCounts(7, 0, 0))


def test_parts_are_one_text() -> None:
    answer = read(body(choices=[{"message": {"content": [{"type": "text", "text": "A"}, {"type": "image"}, "x"]}}]))
    assert isinstance(answer, Completion)
    assert answer.text == "A"


@given(JSON)
def test_no_json_breaks_the_reader(value: object) -> None:
    answer = read(json.dumps(value).encode())
    assert isinstance(answer, Completion | UnreadableBody)
    if isinstance(answer, Completion):
        answer.text.encode()
    words(json.dumps(value).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"<html>busy</html>"])
def test_no_bytes_break_the_reader(content: bytes) -> None:
    assert read(content) == UnreadableBody("invalid JSON", transient=True, odd=True)
    assert len(words(content)[1]) <= 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}]', ("INVALID_ARGUMENT", "bad")),
        ('{"object": "error", "message": "no", "type": "NotFoundError", "code": 404}', ("NotFoundError", "no")),
        ('{"detail": [{"msg": "field required"}]}', ("", '[{"msg": "field required"}]')),
        ('{"error": "plain"}', ("", "plain")),
        ("upstream\n  gone", ("", "upstream gone")),
    ],
)
def test_error_bodies_of_many_servers(content: str, said: tuple[str, str]) -> None:
    assert words(content.encode()) == said


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000", "context length"),
        (400, "'max_tokens' is too large: 16. This model's maximum context length is 2048 tokens", "context length"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "context length"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed", "context length"),
        (413, "Request Entity Too Large", "context length"),
        (400, "The response was filtered due to Azure OpenAI's content management policy", "refused: content filter"),
        (429, "Request too large for gpt on tokens per min (TPM)", "http 429"),
        (429, "You exceeded your current quota, please check your plan and billing details", "http 429"),
        (529, "Overloaded", "http 529"),
        (400, "Invalid value for seed", "http 400"),
        (400, "System role not supported", "no system role"),
        (422, "Template error: syntax error: System role not supported (in <string>:1)", "no system role"),
        (400, "Conversation roles must alternate user/assistant/user/assistant/...", "no system role"),
        (400, "Only user and assistant roles are supported!", "no system role"),
        (400, "Unsupported value: 'messages[0].role' does not support 'system' with this model.", "no system role"),
        (400, "Developer instruction is not enabled for models/gemma-3-27b-it", "no system role"),
        (400, "This model does not support system messages", "no system role"),
        (400, "Invalid role: system", "no system role"),
        (400, "The system is not ready", "http 400"),
    ],
)
def test_statuses_are_named(status: int, message: str, reason: str) -> None:
    content = json.dumps({"error": {"message": message}}).encode()
    trouble = of_status(status, {}, content, CONFIG, replied=True, now=0.0)
    assert trouble.reason == reason
    assert trouble.again == (status in (429, 529)) == trouble.overload
    assert trouble.transient == (trouble.again or reason == "no system role")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "Incorrect API key"),
        (402, "Payment required"),
        (400, "Your credit balance is too low to access the API"),
        (400, "The model `m` does not exist"),
        (404, ""),
        (308, ""),
    ],
)
def test_what_the_user_must_mend_is_raised_at_any_time(status: int, message: str) -> None:
    content = json.dumps({"error": {"message": message}}).encode()
    with pytest.raises(JudgeError, match=f"http {status}") as raised:
        of_status(status, {}, content, CONFIG, replied=True, now=0.0)
    assert raised.value.place == "judge m at http://127.0.0.1:1/v1"
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT", "date": "Fri, 31 Dec 9999 23:59:58 GMT"}, 1.0),
        ({"retry-after": "Fri, 99 Dec 99999 99:99:99 +9999"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 02:00:30 GMT", "date": "Thu, 01 Jan 1970 02:00:00 GMT"}, 30.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=10.0) == seconds


def test_backoff_is_jitter_under_a_doubling_bound_and_the_same_every_time() -> None:
    config = CONFIG.model_copy(update={"max_wait_s": 30.0})
    for attempt in range(1, 80):
        bound = min(30.0, 2.0 ** (attempt - 1))
        waits = [backoff(config, str(key), attempt) for key in range(50)]
        assert 0 <= min(waits) < 0.3 * bound
        assert 0.7 * bound < max(waits) <= bound
        assert waits == [backoff(config, str(key), attempt) for key in range(50)]
