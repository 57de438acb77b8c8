"""A chat template with tools and reasoning, and a text that has both."""

from __future__ import annotations

from typing import Any

# In the manner of Qwen 3's.
TEMPLATE = """
{%- if tools %}{{ 'TOOLS' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- 'call by <tool_call>{...}</tool_call>' }}{% endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message.content }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}
    {%- endif %}
{%- endif %}
"""


def written(arguments: str = '{"city": "Paris"}', name: str = "weather") -> str:
    """A call, as the template writes it."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SAID = (
    "<think>\nThe user wants weather.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
)
