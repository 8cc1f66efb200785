# The bodies of a chat service's clients, by the libraries of OpenAI and Anthropic for Python. It prints the status of each
# call, and the quota that the answer shows.
#
# `./test chat` runs the test that asks the program of `examples/max_tokens.rs` by this one.
import sys

import anthropic
import openai

MESSAGES = [{"role": "user", "content": "hello"}]
FORMS = [
    {"max_tokens": 2},
    {"max_completion_tokens": 50},
    {"max_tokens": 9, "max_completion_tokens": 1},
    {"extra_body": {"max_tokens": None, "max_completion_tokens": None}},
    {"stream": True},
    {"n": 2, "max_tokens": 3},
    {"extra_body": {"n": None}},
    {"n": 9, "max_tokens": 9},
    {"n": 99, "max_tokens": 3},
]


def say(call, form, errors):
    try:
        answer = call(model="any", messages=MESSAGES, **form)
        parsed = answer.parse()
        events = list(parsed) if form.get("stream") else [parsed]
        print(answer.status_code, answer.headers["ratelimit"].split(";t=")[0], len(events) > 0)
    except errors as error:
        print(error.status_code, type(error).__name__)


user = {"x-user": "openai"}
client = openai.OpenAI(base_url=sys.argv[1], api_key="any", default_headers=user, max_retries=0)
for form in FORMS:
    say(client.chat.completions.with_raw_response.create, form, openai.APIStatusError)

user = {"x-user": "anthropic"}
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="any", default_headers=user, max_retries=0)
for form in [
    {"max_tokens": 2},
    {"max_tokens": 2, "stream": True},
    {"max_tokens": 2, "extra_body": {"system": None, "n": None}},
    {"max_tokens": 9, "extra_body": {"n": 12}},
    {"max_tokens": 9, "extra_body": {"n": 99}},
]:
    say(client.messages.with_raw_response.create, form, anthropic.APIStatusError)
