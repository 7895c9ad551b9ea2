"""Requests that no engine must ever see: each with the status and the field its refusal names."""

import json

from support.api.prompts import video_bytes
from support.hostile.bad_parts import (
    AUDIO,
    Bad,
    audio_part,
    bad,
    fields,
    good_png,
    good_wav,
    part,
    png,
    raw,
    url_part,
)

DEEP = 10_000
NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400", "-1", '"0.5"', "true", "[]", "{}"]
SAMPLING = ["temperature", "top_p", "frequency_penalty", "presence_penalty"]
BAD = [
    # Messages
    bad("no messages", "messages", messages=[]),
    bad("messages of a wrong type", "messages", messages="Hi"),
    bad("a message that is no object", "messages[0]", messages=["Hi"]),
    bad("a strange role", "messages[0].role", messages=[{"role": "wizard", "content": "Hi"}]),
    bad("no role", "messages[0].role", messages=[{"content": "Hi"}]),
    bad(
        "content of a wrong type", "messages[0].content", messages=[{"role": "user", "content": 3}]
    ),
    bad("no content", "messages[0].content", messages=[{"role": "user"}]),
    bad("null content", "messages[0].content", messages=[{"role": "user", "content": None}]),
    bad("empty content", "messages[0].content", messages=[{"role": "user", "content": []}]),
    bad(
        "a tool message of no call",
        "messages[1].tool_call_id",
        messages=[{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}],
    ),
    bad(
        "tool calls that are none",
        "messages[1].tool_calls[0]",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [3]},
            {"role": "user", "content": "b"},
        ],
    ),
    part("an unknown part", {"type": "smell"}, "messages[0].content[0].type"),
    part(
        "an address of a scheme that is not fetched",
        {"type": "image_url", "image_url": {"url": "ftp://x/y.png"}},
        "messages[0].content[0].image_url.url",
    ),
    part(
        "an address inside of the machine",
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/y.png"}},
    ),
    part(
        "a file address",
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    ),
    # Media
    part(
        "base64 that is none",
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,@"}},
        "messages[0].content[0].image_url.url",
    ),
    part(
        "an image that is none",
        url_part("image_url", "image/png", b"hello" * 9),
        "messages[0].content[0].image_url",
    ),
    part(
        "half an image",
        url_part("image_url", "image/png", good_png()[:200]),
        "messages[0].content[0].image_url",
    ),
    part(
        "a picture too large",
        url_part("image_url", "image/png", png(50_000, 50_000)),
        "messages[0].content[0].image_url",
    ),
    part(
        "a picture too narrow",
        url_part("image_url", "image/png", png(4000, 3)),
        "messages[0].content[0]",
    ),
    part(
        "a sound that is none",
        audio_part(b"RIFF" + b"x" * 99),
        "messages[0].content[0].input_audio",
    ),
    part("an empty sound", audio_part(good_wav(0)), "messages[0].content[0].input_audio"),
    part("half a wav header", audio_part(good_wav()[:30]), "messages[0].content[0].input_audio"),
    part("a picture as a sound", audio_part(good_png()), "messages[0].content[0].input_audio"),
    part(
        "a video that is none",
        url_part("video_url", "video/mp4", b"\0" * 500),
        "messages[0].content[0].video_url",
    ),
    part(
        "half a video",
        url_part("video_url", "video/mp4", video_bytes(4, 64)[:300]),
        "messages[0].content[0].video_url",
    ),
    part(
        "a video of one frame",
        url_part("video_url", "video/mp4", video_bytes(1, 32)),
        "messages[0].content[0].video_url",
    ),
    *(
        bad(
            f"{marker} beside media",
            "messages[0].content[3].text",
            messages=[
                {
                    "role": "user",
                    "content": [
                        url_part("image_url", "image/png", good_png()),
                        audio_part(good_wav()),
                        url_part("video_url", "video/mp4", video_bytes(4, 32)),
                        {"type": "text", "text": f"Say {marker} now."},
                    ],
                }
            ],
        )
        for marker in ("<|image_pad|>", "<|audio_pad|>", "<|video_pad|>")
    ),
    part(
        "a sound as a video",
        url_part("video_url", "video/mp4", good_wav()),
        "messages[0].content[0].video_url",
    ),
    bad(
        "more images than allowed",
        "messages",
        messages=[
            {"role": "user", "content": [url_part("image_url", "image/png", good_png())] * 9}
        ],
    ),
    # Sampling
    *(
        Bad(
            f"{name} {number}",
            json.dumps(fields(**{name: "@"})).replace('"@"', number).encode(),
            400,
            name,
        )
        for name in SAMPLING
        for number in NUMBERS
        if not (number in ("-1", '"0.5"') and name.endswith("penalty")) and number != '"0.5"'
    ),
    bad("a seed too large", "seed", seed=1 << 63),
    bad("no tokens", "max_completion_tokens", max_completion_tokens=0),
    bad("fewer than no tokens", "max_tokens", max_tokens=-1),
    bad("too many logprobs", "top_logprobs", logprobs=True, top_logprobs=21),
    bad("logprobs that were not asked for", "top_logprobs", top_logprobs=2),
    bad("too many answers", "n", n=129),
    bad("an empty stop", "stop", stop=""),
    bad("too many stops", "stop", stop=["a", "b", "c", "d", "e"]),
    bad("a stop that is no text", "stop", stop=[3]),
    bad("a bias of a token that is none", "logit_bias.x", logit_bias={"x": 1}),
    bad("a bias too large", "logit_bias.5", logit_bias={"5": 1000}),
    bad("a bias of no token of the model", "logit_bias", logit_bias={"99999999": 1}),
    bad("options of no stream", "stream_options", stream_options={"include_usage": True}),
    bad("a response format that is none", "response_format.type", response_format={"type": "poem"}),
    bad(
        "a schema that is none",
        "response_format",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": 3}},
        },
    ),
    bad(
        "a schema that counts to a billion",
        "response_format.json_schema.schema.minItems",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "array", "minItems": 10**9}},
        },
    ),
    bad(
        "a schema that is only itself",
        "structured_outputs.json",
        structured_outputs={"json": {"allOf": [{"$ref": "#"}]}},
    ),
    bad("a raw grammar", "structured_outputs.grammar", structured_outputs={"grammar": "root ::="}),
    bad(
        "a tool without a name that is chosen",
        "tools[0].function.name",
        tools=[{"type": "function", "function": {}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
    ),
    bad(
        "an argument of the rendering call",
        "chat_template_kwargs.messages",
        chat_template_kwargs={"messages": []},
    ),
    bad("a stop token that is none", "stop_token_ids", stop_token_ids=[1 << 30]),
    bad("a bad word of no token", "bad_words[0]", bad_words=["  "]),
    bad("tools that are none", "tools[0].type", tools=[{"type": "hammer"}]),
    bad("a choice of no tool", "tool_choice", tool_choice="required"),
    # Lengths
    bad(
        "a prompt longer than the context",
        "messages",
        messages=[{"role": "user", "content": "long " * 3000}],
    ),
    bad("more tokens than the context", "max_completion_tokens", max_completion_tokens=100_000),
    # Names
    bad("an unknown model", "model", 404, model="gpt-9"),
    bad("an unknown voice", "audio.voice", modalities=["text", "audio"], audio={"voice": "nobody"}),
    bad(
        "an unknown format",
        "audio.format",
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "vinyl"},
    ),
    bad("an unknown modality", "modalities", modalities=["smell"]),
    bad("an unknown stage", "stage_params.singer", stage_params={"singer": {}}, **AUDIO),
    bad(
        "an unknown parameter of a stage",
        "stage_params.talker.warmth",
        stage_params={"talker": {"warmth": 3}},
        **AUDIO,
    ),
    bad(
        "a stage without parameters",
        "stage_params.code2wav",
        stage_params={"code2wav": {"temperature": 1}},
        **AUDIO,
    ),
    bad(
        "parameters that are no object", "stage_params.talker", stage_params={"talker": 3}, **AUDIO
    ),
    bad(
        "an unknown audio history",
        "messages[1].audio.id",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "audio": {"id": "audio_0"}},
            {"role": "user", "content": "b"},
        ],
    ),
    # Bodies
    raw("not JSON", "{"),
    raw("a key twice", '{"model": "a", "model": "b", "messages": []}'),
    raw("another encoding", json.dumps(fields()).encode("utf-16")),
    bad("NUL", "messages[0].content", messages=[{"role": "user", "content": "a\0b"}]),
    bad("a surrogate as a stage", "stage_params", stage_params={"\ud800": {}}),
    bad("a field of another server", "kv_transfer_params", kv_transfer_params={"a": 1}),
    raw("no body", ""),
    raw("a list", "[]"),
    raw("invalid UTF-8", b'{"model": "' + b"\xff\xfe" + b'", "messages": []}'),
    raw("a lone surrogate", json.dumps(fields(messages=[{"role": "user", "content": "\ud800"}]))),
    raw("10,000 nested brackets", "[" * DEEP + "]" * DEEP),
    raw("10,000 nested objects", '{"messages": ' + '{"a": ' * DEEP + "1" + "}" * DEEP + "}"),
    raw(
        "deep inside a message",
        '{"messages": [{"role": "user", "content": "x", "tool_calls": '
        + "[" * DEEP
        + "]" * DEEP
        + "}]}",
    ),
    Bad("33 MiB", b'{"model": "' + b"x" * (33 << 20) + b'"}', 413),
]
# What stages refuse, who know the model: its tokens, its context, what vLLM takes.
BY_STAGES = (
    "a picture too narrow",
    *(f"<|{medium}_pad|> beside media" for medium in ("image", "audio", "video")),
    "more images than allowed",
    "a bias of no token of the model",
    "a schema that is none",
    "a stop token that is none",
    "a prompt longer than the context",
    "more tokens than the context",
)
REFUSED_BY_STAGES = [one for one in BAD if one.name in BY_STAGES]
REFUSED_BY_THE_GATEWAY = [one for one in BAD if one.name not in BY_STAGES]
