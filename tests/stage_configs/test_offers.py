"""A graph announces what the pipeline in its folder makes, and refuses one that is not served."""

import json
from pathlib import Path

import pytest

from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.pick import find_graph

GRAPH = "stages: {{dit: {{kind: diffusers}}}}\noutputs: {outputs}\nmodel: {model}\n"


def folder_of(folder: Path, name: str) -> str:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": name}))
    return str(folder)


def graph_of(folder: Path, outputs: str, model: str) -> str:
    file = folder / "graph.yaml"
    file.write_text(GRAPH.format(outputs=outputs, model=model))
    return str(file)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("QwenImagePipeline", "image"),
        ("WanPipeline", "video"),
        ("LTX2Pipeline", "video"),
        ("StableAudioPipeline", "audio"),
    ],
)
def test_a_folder_announces_the_one_output_of_its_pipeline(
    name: str, output: str, tmp_path: Path
) -> None:
    model = folder_of(tmp_path, name)
    assert find_graph(model).outputs == {output: "dit"}
    every = graph_of(tmp_path, "{image: dit, video: dit, audio: dit}", model)
    assert find_graph(every).outputs == {output: "dit"}


def test_a_class_of_nobody_s_announces_what_the_file_says(tmp_path: Path) -> None:
    outputs = {"image": "dit", "video": "dit", "audio": "dit"}
    assert find_graph(folder_of(tmp_path, "MyPipeline")).outputs == outputs


def test_an_output_that_the_pipeline_does_not_make_is_refused(tmp_path: Path) -> None:
    file = graph_of(tmp_path, "{video: dit}", folder_of(tmp_path, "QwenImagePipeline"))
    with pytest.raises(GraphError, match=r"^outputs.video: the model of dit makes image$"):
        find_graph(file)


def test_a_pipeline_without_a_known_output_is_refused(tmp_path: Path) -> None:
    model = folder_of(tmp_path, "MarigoldDepthPipeline")
    for target in (model, graph_of(tmp_path, "{image: dit, video: dit}", model)):
        with pytest.raises(GraphError, match=r"^stages.dit: .*MarigoldDepthPipeline returns"):
            find_graph(target)
