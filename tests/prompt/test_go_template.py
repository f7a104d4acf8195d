"""Ollama's templates: prompts that they write, and templates that are refused."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.go_template import GoTemplate

CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
GEMMA = """{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if or (eq .Role "user") (eq .Role "system") }}<start_of_turn>user
{{ .Content }}<end_of_turn>
{{ if $last }}<start_of_turn>model
{{ end }}
{{- else if eq .Role "assistant" }}<start_of_turn>model
{{ .Content }}{{ if not $last }}<end_of_turn>
{{ end }}{{- end }}{{- end }}"""


def render(template: str, *turns: tuple[str, str], suffix: str = "") -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return GoTemplate(template, "template").prompt(messages, suffix)


def test_a_template_of_one_turn_writes_each_and_ends_where_the_answer_begins() -> None:
    turns = ("system", "S"), ("user", "one"), ("assistant", "two"), ("user", "three")
    assert render(CHATML, *turns) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML, *turns[1:3]).endswith("<|im_start|>assistant\ntwo")


def test_a_template_of_messages_has_them_all() -> None:
    assert render(GEMMA, ("system", "S"), ("user", "one"), ("assistant", "two"), ("user", "three")) == (
        "<start_of_turn>user\nS<end_of_turn>\n<start_of_turn>user\none<end_of_turn>\n"
        "<start_of_turn>model\ntwo<end_of_turn>\n<start_of_turn>user\nthree<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("no action", "no action"),
        ("{{ .Prompt }}", "hi"),
        ("a {{- .Prompt -}} b", "ahib"),
        ("a {{ .Prompt }} b", "a hi b"),
        ("{{/* said {{ */}}{{- /* twice */ -}} x", "x"),
        ('{{ `{{ "` }}{{ "}}\\n" }}', '{{ "}}\n'),
        ('{{ if eq .Prompt "ho" "hi" }}yes{{ else }}no{{ end }}', "yes"),
        ("{{ if and .Prompt .System }}both{{ else if .Prompt }}one{{ end }}", "one"),
        ("{{ with .Prompt }}{{ . }}!{{ else }}none{{ end }}", "hi!"),
        ("{{ range .Tools }}x{{ else }}none{{ end }}", "none"),
        ("{{ $a := .Prompt }}{{ $a = print $a 1 true nil }}{{ $a | len }}{{ $a }}", "7hi1true"),
        ("{{ (index $.Messages 0).Role }}{{ with index $.Messages 0 }}{{ .Role }}{{ end }}", "useruser"),
        ("{{ json .Tools }}{{ .Think }}{{ not 0 }}{{ lt 1 2.5 }}", "[]falsetruetrue"),
        ("{{ ne .Prompt .Prompt }}", "false"),
        ("{{ .Prompt }} <SUF>{{ .Suffix }} <MID>", "hi <SUF>z <MID>"),
        ("{{ .Prompt }}{{ .Response }}{{ .Nothing }}", "hi"),
    ],
)
def test_the_language(template: str, expected: str) -> None:
    assert render(template, ("user", "hi"), suffix="z") == expected


@pytest.mark.parametrize(
    ("template", "why"),
    [
        *(("{{ .Prompt", "not closed"), ('{{ " }}', "not closed"), ("{{ }}", "empty")),
        *(("{{ if .Prompt }}", "no 'end'"), ("{{ end }}", "ends nothing"), ("{{ else }}", "ends nothing")),
        ("{{ if .Prompt }}{{ else range .Tools }}{{ end }}", "not known"),
        ("{{ shout .Prompt }}", "the function 'shout'"),
        ('{{ template "x" }}', "'template' is not known"),
        ("{{ .Nothing }}", "no field '.Nothing'"),
        ("{{ .Prompt.Length }}", "no field '.Length'"),
        ("{{ $x }}", "no variable '$x'"),
        *(("{{ . . }}", "a value was expected"), ("{{ | len }}", "a value was expected")),
        *(("{{ (.Prompt }}", "bracket"), ("{{ .Prompt ) }}", "not expected"), ('{{ "\\q" }}', "not a text")),
        ('{{ "\\ud800" }}', "not a text"),
        *(("{{ .Prompt & }}", "not understood"), ("{{ range .Prompt }}{{ end }}", "wants a list")),
        *(
            (f"{{{{ {call} }}}}", "other values")
            for call in ("len 3", "index .Messages 7", "slice .Messages 7")
        ),
        ("{{ $a, $b := .Prompt }}", "two variables"),
        ("{{ " + "(" * 100 + ".Prompt" + ")" * 100 + " }}", "too deep"),
        ("{{ if .Prompt }}" * 100 + "{{ end }}" * 100, "too deep"),
        ("x" * 70_000, "longer"),
    ],
)
def test_invalid_templates_are_refused(template: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid template") as refused:
        render(template, ("user", "hi"))
    assert (why in str(refused.value), refused.value.param) == (True, "template")


@pytest.mark.parametrize(
    "template",
    [
        "{{$x := print `aaaaaaaa`}}" + "{{$x = print $x $x}}" * 26 + "{{.Prompt}}",
        "{{$x := json .Messages}}" + "{{$x = json $x}}" * 26,
        "{{range .Messages}}{{range $.Messages}}{{range $.Messages}}{{json $.Messages}}{{end}}{{end}}{{end}}",
        "{{.Prompt}}" * 5900,
        "{{$x := .Prompt}}" + "{{if eq $x $x $x $x $x $x $x $x}}{{end}}" * 1600,
    ],
)
def test_the_output_of_a_template_is_bounded(template: str) -> None:
    messages = [{"role": role, "content": "y" * 4096} for role in ("user", "assistant") * 20]
    with pytest.raises(InvalidRequest, match=r"characters|too long"):
        GoTemplate(template, "template").prompt(messages, most_chars=100_000)


def test_a_long_number_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a number is too long"):
        GoTemplate("{{" + "9" * 60_000 + "}}", "template")


def test_a_very_long_conversation_is_rendered_or_refused() -> None:
    many = [("user", "a" * 50)] * 200_000
    assert len(render(CHATML, *many)) > 10_000_000
    with pytest.raises(InvalidRequest, match="too long"):
        render(CHATML, *[("user", "a"), ("assistant", "b")] * 50_000)


@pytest.mark.parametrize(
    "template",
    [
        "{{ range .Messages }}" * 4 + "x" + "{{ end }}" * 4,
        *("{{" * 30_000, "{{ " + " " * 60_000, "{{ " + '"' * 60_001, " " * 60_000 + "{{-"),
        "{{ (" + "." * 60_000,
    ],
)
def test_hostile_templates_are_refused(template: str) -> None:
    with pytest.raises(InvalidRequest):
        render(template, *[("user", "a"), ("assistant", "b")] * 100)
