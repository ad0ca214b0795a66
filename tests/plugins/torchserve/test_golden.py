def test_the_golden_files_are_fresh(make_golden, golden_folder):
    for name, text in make_golden.files().items():
        assert (golden_folder / name).read_text(encoding="utf-8") == text, name


def test_the_example_page_has_exactly_the_golden_bytes(make_golden, golden, page_path):
    make_golden.make_page(page_path).close()
    content = page_path.read_bytes()
    expected = golden("page.json")
    found = {
        str(at): content[at : at + 8].hex()
        for at in range(0, len(content), 8)
        if any(content[at : at + 8])
    }
    assert len(content) == expected["page_size"]
    assert found == expected["words"]


def test_a_page_starts_with_its_name(golden):
    assert bytes.fromhex(golden("page.json")["words"]["0"]) == b"SHUNTER\0"
