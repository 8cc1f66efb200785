# A client of a chat service, by OpenAI's library for Python. It prints the answer, the error of a denied call that may not
# wait, and the answer to one that may.
#
# `./test chat` runs the test that asks a server by this program.
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="any key")


def chat(client):
    messages = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model="any", messages=messages)
    print(answer.choices[0].message.content)


chat(client)
try:
    chat(client.with_options(max_retries=0))
except openai.RateLimitError as error:
    print(error)
chat(client)
