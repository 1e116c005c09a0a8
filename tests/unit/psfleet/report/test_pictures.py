"""Pictures of a run: which are kept, and how the page shows them."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest
from support.report_samples import DONE

from psfleet.report import html, pictures
from psfleet.report.history import History, Point
from psfleet.run_folder import ALL_RESULTS, clear


def steps_of(folder: Path, tag: str = "made") -> list[int]:
    return [picture.step for picture in pictures.pictures(folder).get(tag, [])]


def test_the_first_and_the_newest_picture_stay_and_those_between_are_about_equally_far_apart(tmp_path: Path) -> None:
    for step in range(100, 3300, 100):
        pictures.add(tmp_path, step, [("made", b"png")])
    found = steps_of(tmp_path)
    assert (found[0], found[-1], len(found)) == (100, 3200, pictures.MAX_STEPS)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert min(gaps) >= 600


def test_a_step_that_is_made_again_replaces_its_picture(tmp_path: Path) -> None:
    for content in (b"before", b"after"):
        pictures.add(tmp_path, 5, [("made", content)])
    [picture] = pictures.pictures(tmp_path)["made"]
    assert base64.b64decode(picture.url.partition(",")[2]) == b"after"


def test_pictures_beyond_the_limits_are_left_out(tmp_path: Path) -> None:
    tags = [f"tag/{number}" for number in range(pictures.MAX_TAGS + 2)]
    large = ("large", bytes(pictures.MAX_BYTES + 1))
    pictures.add(tmp_path, 1, [large, ("x" * 300, b"png"), *((tag, b"png") for tag in tags)])
    assert list(pictures.pictures(tmp_path)) == tags[: pictures.MAX_TAGS]


def test_other_files_in_the_folder_are_no_pictures_and_stay(tmp_path: Path) -> None:
    pictures.add(tmp_path, 1, [("made", b"png")])
    own = tmp_path / pictures.FOLDER / "notes.txt"
    own.write_text("mine")
    (tmp_path / pictures.FOLDER / "cat.png").write_bytes(b"png")
    assert list(pictures.pictures(tmp_path)) == ["made"]
    clear(tmp_path, ALL_RESULTS)
    assert own.exists()
    assert steps_of(tmp_path) == []


def test_the_page_shows_each_picture_with_its_step_and_no_markup_of_a_tag(tmp_path: Path) -> None:
    for step in (1, 2):
        pictures.add(tmp_path, step, [("<b>made</b>", b"png")])
    page = html.page(DONE, tmp_path)
    assert page.count('<img src="data:image/png;base64,cG5n"') == 2
    assert "&lt;b&gt;made&lt;/b&gt; at step 2" in page
    assert "<b>made" not in page
    assert "img-src data:" in page
    assert "Pictures" not in html.page(DONE, tmp_path / "empty")


@pytest.mark.parametrize("losses", [{}, {"critic": 1.25, "actor": 0.5}])
def test_each_of_several_losses_has_a_chart_and_a_number(losses: dict[str, float], tmp_path: Path) -> None:
    history = History(tmp_path / History.FILE_NAME)
    for step in (1, 2):
        point = Point(time=1.0, step=step, generation=1, loss=0.5, losses=losses, step_secs=0.1, examples_per_sec=10.0)
        history.append(point)
    page = html.page(DONE.model_copy(update={"losses": losses}), tmp_path)
    assert ("Loss: critic" in page, "Loss: actor" in page) == (bool(losses), bool(losses))
    assert ("last training loss: critic" in page) == bool(losses)
    assert ('<th scope="row">last training loss</th>' in page) == (not losses)
