"""Every table is complete and equals the measured offsets of its version."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import MISSING
from dataclasses import fields as fields_of
from itertools import pairwise

import pytest

from rbtrace_py.errors import UnknownRuby
from rbtrace_py.rubyvm.layout import (
    ClassPath,
    Field,
    LineTable,
    Offsets,
    Origin,
    StringStyle,
    ThreadList,
)
from rbtrace_py.rubyvm.layouts import VERSIONS, layout_from, nearest, table_for

NAMES = {field.name for field in fields_of(Offsets)}
OPTIONAL = {
    field.name
    for field in fields_of(Offsets)
    if "None" in str(field.type) or field.default is not MISSING
}
RELEASES = {
    (2, 1): 10, (2, 2): 10, (2, 3): 8, (2, 4): 10, (2, 5): 9, (2, 6): 10, (2, 7): 8,
    (3, 0): 7, (3, 1): 7, (3, 2): 11, (3, 3): 11, (3, 4): 11, (4, 0): 5,
    (4, 1): 0,
}  # fmt: skip
"""The last patch release each table was compared with, or one after it."""

ALL = [
    f"{major}.{minor}.{teeny}"
    for (major, minor), last in RELEASES.items()
    for teeny in range(last + 1)
]
MEASURED = ("2.7.4", "3.0.7", "3.1.2", "3.2.9", "3.3.8", "3.4.11", "4.0.5", "4.1.0")
"""Rubies whose stacks were read with these offsets and found equal to their own."""

each_release = pytest.mark.parametrize(
    "version",
    [
        f"{major}.{minor}.{t}"
        for (major, minor), last in RELEASES.items()
        for t in (0, last)
    ],
)

WORDS = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|sizeof [A-Za-z_]\w*")


def test_each_minor_version_has_a_table() -> None:
    assert tuple(RELEASES) == VERSIONS
    assert {table_for(version).version for version in ALL} == set(VERSIONS)


@each_release
def test_the_table_has_what_an_offset_must_be_known_of(version: str) -> None:
    names = set(table_for(version).fields)
    assert names <= NAMES
    assert names >= NAMES - OPTIONAL


@each_release
def test_each_field_has_its_own_words(version: str) -> None:
    table = table_for(version)
    words = Counter(field.member for field in table.fields.values())
    # The flag of Ruby 2.1 is a separate word, not a bit in a word.
    twice = [table.fields["objspace_flags"].member] if version[:3] == "2.1" else []
    assert [word for word, count in words.items() if count > 1] == twice
    for field in table.fields.values():
        assert all(WORDS.fullmatch(term) for term in field.member.split(" + "))


@each_release
def test_offsets_make_sense(version: str) -> None:
    table = table_for(version)
    for name, field in table.fields.items():
        assert 0 <= field.offset < 4096, name
        is_small = name in SMALL or "sizeof" in field.member
        assert is_small or field.offset % 8 == 0, name


SMALL = {
    "th_status", "nt_tid", "body_type", "body_size", "body_line_count", "line_number",
    "line_position", "def_type", "fiber_status", "objspace_flags", "objspace_gc_bit",
    "body_first_line", "body_last_line", "queue_waiting", "queue_pushing", "io_fd",
    "io_pid", "locals_count", "locals_block", "jit_frame_map_size",
}  # fmt: skip
"""Members that are not words of 8 bytes."""


@each_release
def test_members_of_a_structure_do_not_overlap(version: str) -> None:
    places: dict[tuple[str, int], list[str]] = {}
    for name, field in table_for(version).fields.items():
        structure = field.member.split(".")[0]
        if name not in ("objspace_gc_bit", "objspace_flags") and "sizeof" not in (
            field.member
        ):
            places.setdefault((structure, field.offset), []).append(name)
    shared = [names for names in places.values() if len(names) > 1]
    assert shared == []


@each_release
def test_a_member_lies_within_what_has_a_size(version: str) -> None:
    fields = table_for(version).fields
    for size, prefix in (("cfp_size", "cfp_"), ("line_size", "line_")):
        inside = [
            field.offset
            for name, field in fields.items()
            if name.startswith(prefix) and name != size
        ]
        assert max(inside) < fields[size].offset


@each_release
def test_traits_and_fields_agree(version: str) -> None:
    table = table_for(version)
    traits, has = table.traits, table.fields.__contains__
    minor = table.version
    assert traits.has_ractors == has("vm_ractors") == (minor >= (3, 0))
    assert traits.flags_in_ep != has("cfp_flag")
    assert traits.method_in_ep != has("cfp_me")
    assert (traits.line_table is LineTable.POSITION_IN_ENTRY) == has("line_position")
    assert (traits.line_table is LineTable.SUCCINCT) == has("body_line_index")
    assert (traits.thread_list is ThreadList.LIST) == has("th_list_node")
    assert (traits.class_path is ClassPath.IVAR_TABLE) == has("class_ext")
    assert (traits.class_path is ClassPath.EXTENSION) == has("class_path")
    assert (traits.string_style is StringStyle.LENGTH_FIRST) == (minor >= (3, 2))
    assert traits.native_id_is_tid == (has("nt_tid") or minor == (3, 1))
    assert (traits.iseq_imemo is None) == (not has("iseq_body"))


@each_release
def test_types_of_frames_are_told_apart(version: str) -> None:
    traits = table_for(version).traits
    magics = traits.frame_magics
    assert len(set(magics.values())) == len(magics)
    assert all(value & traits.frame_magic_mask == value for value in magics.values())
    common = {"METHOD", "BLOCK", "CLASS", "TOP", "CFUNC", "IFUNC", "EVAL", "RESCUE"}
    assert common <= set(magics)
    assert ("PROC" in magics) == ("LAMBDA" in magics) == (version < "2.5")
    assert ("DUMMY" in magics) == (version >= "2.3")


def row(values: str) -> list[int | None]:
    return [None if value == "-" else int(value) for value in values.split()]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ec_vm_stack", "0 0 0 0 0 0 0 0"),
        ("ec_vm_stack_size", "8 8 8 8 8 8 8 8"),
        ("ec_cfp", "16 16 16 16 16 16 16 16"),
        ("ec_thread", "56 56 48 48 48 48 48 48"),
        ("cfp_size", "56 56 64 64 56 56 56 56"),
        ("cfp_pc", "0 0 0 0 0 0 0 0"),
        ("cfp_sp", "8 8 8 8 8 8 8 8"),
        ("cfp_iseq", "16 16 16 16 16 16 16 16"),
        ("cfp_self", "24 24 24 24 24 24 24 24"),
        ("cfp_ep", "32 32 32 32 32 32 32 32"),
        ("th_vm", "24 32 32 32 32 32 32 32"),
        ("th_ec", "32 40 40 48 48 48 48 48"),
        ("th_self", "16 16 16 16 16 16 16 16"),
        ("th_ractor", "- 24 24 24 24 24 24 24"),
        ("th_list_node", "0 0 0 0 0 0 0 0"),
        ("th_native_thread", "- - - 40 40 40 40 40"),
        ("nt_tid", "- - - 16 24 24 24 24"),
        ("th_status", "80 88 92 112 240 240 248 248"),
        ("vm_threads", "312 - - - - - - -"),
        ("vm_running_thread", "200 - - - - - - -"),
        ("vm_main_thread", "192 40 40 40 40 40 40 40"),
        ("vm_ractors", "- 8 8 8 8 8 8 8"),
        ("vm_main_ractor", "- 32 32 32 32 32 32 32"),
        ("ractor_threads", "- 304 304 304 256 256 184 240"),
        ("ractor_running_ec", "- 520 520 520 384 384 312 376"),
        ("ractor_main_thread", "- 528 528 528 392 392 320 384"),
        ("ractor_list_node", "- 568 568 568 432 432 360 432"),
        ("iseq_body", "16 16 16 16 16 16 16 16"),
        ("body_type", "0 0 0 0 0 0 0 0"),
        ("body_size", "4 4 4 4 4 4 4 4"),
        ("body_encoded", "8 8 8 8 8 8 8 8"),
        ("body_path", "64 64 64 64 64 64 64 64"),
        ("body_base_label", "72 72 72 72 72 72 72 72"),
        ("body_label", "80 80 80 80 80 80 80 80"),
        ("body_first_line", "88 88 88 88 88 88 88 88"),
        ("body_lines", "120 120 120 112 112 112 112 112"),
        ("body_line_positions", "128 128 128 120 120 120 120 120"),
        ("body_line_count", "136 136 136 128 128 128 128 128"),
        ("body_line_index", "144 144 144 136 136 136 136 136"),
        ("line_size", "8 8 12 12 12 12 12 12"),
        ("body_parent", "168 168 168 160 160 160 168 168"),
        ("body_local", "176 176 176 168 168 168 176 176"),
        ("me_flags", "0 0 0 0 0 0 0 0"),
        ("me_defined_class", "8 8 8 8 8 8 8 8"),
        ("me_def", "16 16 16 16 16 16 16 16"),
        ("me_called_id", "24 24 24 24 24 24 24 24"),
        ("me_owner", "32 32 32 32 32 32 32 32"),
        ("def_type", "0 0 0 0 0 0 0 0"),
        ("def_body", "8 8 8 8 8 8 8 8"),
        ("def_original_id", "32 32 32 32 32 32 32 32"),
        ("class_ext", "24 24 24 - - - - -"),
        ("ext_ivars", "8 8 8 - - - - -"),
        ("class_path", "- - - - 152 152 152 48"),
        ("class_attached", "- - - - 128 128 136 128"),
        ("symbols_last_id", "0 0 0 0 0 0 0 0"),
        ("symbols_ids", "16 16 16 16 16 16 16 16"),
        ("th_locking_mutex", "248 256 264 216 344 344 352 360"),
        ("th_scheduler", "- 368 336 288 416 432 432 440"),
        ("th_gvl_node", "88 96 104 56 72 72 72 72"),
        ("gvl_queue", "56 384 384 384 344 344 272 336"),
        ("gvl_holder", "8 336 336 336 328 328 256 312"),
        ("mutex_owner", "0 0 0 0 0 0 8 8"),
        ("mutex_serial", "- - - - - - 0 0"),
        ("ec_serial", "- - - - - - 56 56"),
        ("io_fd", "8 16 16 16 16 16 16 16"),
        ("io_pid", "16 24 24 24 24 24 24 24"),
        ("locals_names", "152 152 152 144 144 144 144 144"),
        ("locals_params", "16 16 16 16 16 16 16 16"),
        ("locals_block", "44 44 44 44 44 44 44 44"),
        ("locals_count", "232 232 240 232 232 232 240 240"),
    ],
)
def test_offsets_are_those_measured(name: str, values: str) -> None:
    found = [table_for(version).fields.get(name) for version in MEASURED]
    assert [field and field.offset for field in found] == row(values)


def test_traits_are_those_measured() -> None:
    traits = [table_for(version).traits for version in MEASURED]
    assert [t.qnil for t in traits] == row("8 8 8 4 4 4 4 4")
    assert [t.singleton_bit for t in traits] == row("12 12 12 12 12 13 13 13")
    assert [t.first_line_is_fixnum for t in traits] == [True] * 3 + [False] * 5
    assert {(t.iseq_imemo, t.ment_imemo, t.svar_imemo) for t in traits} == {(7, 6, 2)}
    assert {t.local_flag for t in traits} == {2}
    assert {t.frame_magic_mask for t in traits} == {0x7FFF0001}
    assert {t.frame_magics["METHOD"] for t in traits} == {0x11110001}
    assert {t.frame_magics["CFUNC"] for t in traits} == {0x55550001}


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ("2.3.4", "2.3.5", {"vm_threads", "vm_objspace"}),
        ("2.4.1", "2.4.2", {"vm_threads", "vm_objspace"}),
        ("2.5.3", "2.5.4", {"vm_threads", "vm_objspace"}),
        ("3.1.4", "3.1.5", {"vm_objspace"}),
        ("3.2.2", "3.2.3", {"vm_objspace"}),
        ("3.2.6", "3.2.7", {"vm_objspace"}),
    ],
)
def test_patch_releases_differ(before: str, after: str, moved: set[str]) -> None:
    old, new = table_for(before).fields, table_for(after).fields
    assert {name for name in old if old[name] != new[name]} == moved
    assert {name: field.member for name, field in old.items()} == {
        name: field.member for name, field in new.items()
    }


def test_patch_releases_differ_nowhere_else() -> None:
    changes = [
        later
        for earlier, later in pairwise(ALL)
        if earlier[:3] == later[:3] and table_for(earlier) != table_for(later)
    ]
    assert changes == ["2.3.5", "2.4.2", "2.5.4", "3.1.5", "3.2.3", "3.2.7"]


def test_a_patch_release_yet_to_come_is_as_the_last() -> None:
    assert table_for("3.2.99") == table_for("3.2.11")


def test_each_table_says_how_far_it_was_verified() -> None:
    assert {
        version: table_for(f"{version[0]}.{version[1]}.0").newest
        for version in (VERSIONS)
    } == RELEASES


def test_4_0_6_moved_the_members_after_two_new_ones() -> None:
    old, new = table_for("4.0.5").fields, table_for("4.0.6").fields
    assert old.keys() - new.keys() == {"gvl_queue", "gvl_holder"}
    moved = {n: new[n].offset - old[n].offset for n in new if old[n] != new[n]}
    assert moved == {
        "vm_objspace": 8,
        "ractor_running_ec": 16,
        "ractor_main_thread": 16,
        "ractor_list_node": 16,
    }


def test_a_development_branch_has_a_table_for_each_day() -> None:
    first = table_for("4.1.0")
    assert first.later is not None
    days = first.development, first.later.development
    assert days == ("28 July 2026", "7 August 2026")
    assert first.later.later is None
    assert first.later.traits is first.traits
    gone = first.fields.keys() - first.later.fields.keys()
    come = first.later.fields.keys() - first.fields.keys()
    assert (gone, come) == ({"vm_objspace"}, {"ractor_objspace"})
    assert not any(table_for(one).development for one in ALL if one < "4.1")


@pytest.mark.parametrize(
    ("version", "near"), [("4.2.0", "4.1"), ("2.0.0", "2.1"), ("1.9.3", "2.1")]
)
def test_an_unknown_version_names_the_nearest(version: str, near: str) -> None:
    with pytest.raises(UnknownRuby) as caught:
        table_for(version)
    assert str(caught.value) == (f"unsupported version: Ruby {version}")
    assert f"--ruby-version {near};" in caught.value.hint


@pytest.mark.parametrize("version", ["", "3", "trunk", "3.x", "9" * 400, "3.1000.0"])
def test_malformed_versions(version: str) -> None:
    with pytest.raises(UnknownRuby) as caught:
        table_for(version)
    assert "is not a Ruby version" in str(caught.value)
    assert len(str(caught.value)) < 100


def test_nearest_of_two_is_the_later() -> None:
    assert nearest((3, 7)) == (4, 0)
    assert nearest((2, 8)) == (2, 7)


def test_a_better_source_replaces_fields_one_by_one() -> None:
    table = table_for("3.1.2")
    field = Field(24, "rb_execution_context_t.cfp")
    layout = layout_from(table, "3.1.2", {"ec_cfp": (Origin.DWARF, field)})
    assert layout.version == "3.1.2"
    assert layout.offsets.ec_cfp == 24
    assert layout.origins["ec_cfp"] is Origin.DWARF
    assert layout.offsets.ec_thread == 48
    assert layout.origins["ec_thread"] is Origin.TABLE
    assert layout.offsets.vm_threads is None
    assert set(layout.origins) == set(table.fields)


def test_a_table_alone() -> None:
    table = table_for("2.7.4")
    layout = layout_from(table, "2.7.4")
    assert set(layout.origins.values()) == {Origin.TABLE}
    for name, field in table.fields.items():
        assert getattr(layout.offsets, name) == field.offset
