"""Draws docs/pictures/throughput.svg from the table "Beside a peer" of docs/performance.md.

python scripts/chart.py
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "pictures" / "throughput.svg"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 300, 20, 56, 250
BAR, GAP = 44, 4
COLOURS = {"omnistage": "#0f766e", "vllm-omni 0.26.0": "#94a3b8"}
Row = tuple[str, dict[str, float]]


def read(page: str) -> list[Row]:
    """Return, for each number of streams, the seconds of audio per second of each server."""
    (section,) = re.findall(r"^## Beside a peer\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
    lines = [line[1:-1].split("|") for line in section.splitlines() if line.startswith("|")]
    names = [cell.strip() for cell in lines[0]]
    rows = []
    for cells in lines[2:]:
        values = {
            name.removeprefix("audio s/s, "): float(cell)
            for name, cell in zip(names, cells, strict=True)
            if name.startswith("audio s/s") and cell.strip()
        }
        rows.append((cells[0].strip(), values))
    return rows


def draw(rows: list[Row]) -> str:
    """Return the chart as SVG: a group of bars per number of streams, a bar per server."""
    peak = max(max(values.values()) for _, values in rows)
    step = (WIDTH - 2 * LEFT) / len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Seconds of audio per second of one H200</text>',
        f'<path d="M{LEFT} {BOTTOM}H{WIDTH - LEFT}" stroke="#334155"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">streams</text>',
    ]
    for index, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 140 * index
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="43">{name}</text>')
    for index, (streams, values) in enumerate(rows):
        middle = LEFT + step * (index + 0.5)
        parts.append(
            f'<text x="{middle:.0f}" y="{BOTTOM + 18}" text-anchor="middle">{streams}</text>'
        )
        for side, (name, colour) in enumerate(COLOURS.items()):
            if (value := values.get(name)) is None:
                continue
            left = middle - BAR - GAP / 2 + side * (BAR + GAP)
            height = (BOTTOM - TOP - 16) * value / peak
            y, centre = BOTTOM - height, left + BAR / 2
            parts.append(
                f'<rect x="{left:.0f}" y="{y:.1f}" width="{BAR}" height="{height:.1f}" '
                f'fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{centre:.0f}" y="{y - 4:.1f}" text-anchor="middle">{value:g}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    CHART.write_text(draw(read(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")
