//! PDF files written by hand: good ones, hostile ones, and every prefix of one.

use std::io::Write;

use super::*;

const LIMIT: u64 = 4 << 20;

/// A file of objects, numbered from 1; the first is the catalog.
pub(in crate::documents) fn file(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
    let mut bytes = b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n".to_vec();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(bytes.len());
        bytes.extend(format!("{} 0 obj\n", number + 1).bytes());
        bytes.extend(object);
        bytes.extend(b"\nendobj\n");
    }
    let start = bytes.len();
    bytes.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    for offset in offsets {
        bytes.extend(format!("{offset:010} 00000 n \n").bytes());
    }
    let size = objects.len() + 1;
    bytes.extend(format!("trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n").bytes());
    bytes
}

fn stream(entries: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = format!("<< /Length {} {entries} >>\nstream\n", content.len()).into_bytes();
    bytes.extend(content);
    bytes.extend(b"\nendstream");
    bytes
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(content).unwrap();
    packer.finish().unwrap()
}

const HELVETICA: &str = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>";

/// A file with a page for each content.
pub(in crate::documents) fn pages_of(contents: &[&str], trailer: &str) -> Vec<u8> {
    let kids: String = (0..contents.len()).map(|at| format!("{} 0 R ", 4 + 2 * at)).collect();
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        format!(
            "<< /Type /Pages /Kids [{kids}] /Count {} /Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792] >>",
            contents.len()
        )
        .into_bytes(),
        HELVETICA.as_bytes().to_vec(),
    ];
    for (at, content) in contents.iter().enumerate() {
        objects.push(format!("<< /Type /Page /Parent 2 0 R /Contents {} 0 R >>", 5 + 2 * at).into_bytes());
        objects.push(stream("/Filter /FlateDecode", &packed(content.as_bytes())));
    }
    objects.push(b"<< /Title (Salt \\(pans\\)) /Author <FEFF00C9> >>".to_vec());
    let info = objects.len();
    file(&objects, &format!("/Info {info} 0 R {trailer}"))
}

const FIRST: &str = "BT /F1 12 Tf 72 720 Td (The salt pans) Tj 0 -14 Td [(of ) -20 (Nir) 10 (a) -400 (were)] TJ T* \
                     0 -40 Td (dug in 1687\\226and \\350re.) Tj ET";

#[test]
fn words_lines_paragraphs_and_pages() {
    let made = read(
        &pages_of(&[FIRST, "", "BT /F1 9 Tf 1 0 0 1 72 700 Tm (Second page) Tj 1 0 0 1 124 700 Tm (end) Tj ET"], ""),
        LIMIT,
    )
    .unwrap();
    assert_eq!(made.text, "The salt pans\nof Nira were\n\ndug in 1687–and ère.\n\nSecond page end");
    assert_eq!(made.title.as_deref(), Some("Salt (pans)"));
    assert_eq!(made.details["author"], "É");
    assert_eq!(made.details["pages"], 3);
    assert_eq!(made.details["pages_without_text"], 1);
    let second = made.text.find("Second").unwrap();
    assert_eq!(made.details["page_offsets"], serde_json::json!([0, second - 2, second]));
}

#[test]
fn forms_character_maps_and_unknown_names_of_glyphs() {
    let map = "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n1 begincodespacerange <0000> <FFFF> \
               endcodespacerange\n2 beginbfchar <0001> <0416> <0002> <FB01> endbfchar\nendcmap end end";
    let objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /A 5 0 R /B 7 0 R >> /XObject << /X 9 0 R >> >> >>".to_vec(),
        stream("", b"BT /A 10 Tf 1 0 0 1 10 100 Tm <00010002> Tj /B 10 Tf 1 0 0 1 10 80 Tm (a\x01\x02b) Tj ET q 1 0 0 1 10 60 cm /X Do Q"),
        b"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /ToUnicode 6 0 R /DescendantFonts [8 0 R] >>".to_vec(),
        stream("", map.as_bytes()),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Y /Encoding << /Type /Encoding /Differences [1 /eacute /g77 /zz.alt] >> >>".to_vec(),
        b"<< /Type /Font /Subtype /CIDFontType2 /DW 600 /W [1 [500 500]] >>".to_vec(),
        stream("/Type /XObject /Subtype /Form /Resources << /Font << /A 7 0 R >> >>", b"BT /A 8 Tf (form) ' ET"),
    ];
    let made = read(&file(&objects, ""), LIMIT).unwrap();
    assert_eq!(
        made.text, "Жfi\n\naé\u{fffd}b\n\nform",
        "letters of ligatures; a name that nobody knows costs one glyph"
    );
}

#[test]
fn scans_fonts_without_characters_and_encrypted_files_say_so() {
    let scan = read(&pages_of(&["q 612 0 0 792 0 0 cm /Im1 Do Q", ""], ""), LIMIT).unwrap_err();
    assert_eq!(scan.kind, "no_text");
    assert!(scan.message.contains("no text on its 2 pages") && scan.message.contains("ocrmypdf"), "{scan:?}");
    let objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /A 5 0 R >> >> >>".to_vec(),
        stream("", b"BT /A 10 Tf <0001000200030004> Tj ET"),
        b"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /90ms-RKSJ-H >>".to_vec(),
    ];
    let fault = read(&file(&objects, ""), LIMIT).unwrap_err();
    assert!(fault.message.contains("do not say which characters"), "{fault:?}");
    let locked = "/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A> \
                  /U <00000000000000000000000000000000000000000000000000000000000000ff> >> /ID [<00> <00>]";
    let fault = read(&pages_of(&[FIRST], locked), LIMIT).unwrap_err();
    assert_eq!(fault.kind, "encrypted", "{fault:?}");
    assert!(fault.message.contains("qpdf --decrypt"));
}

#[test]
fn bombs_end_at_the_limit() {
    let objects = |content: Vec<u8>| {
        vec![
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
            b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F 5 0 R >> /XObject << /X 6 0 R >> >> >>".to_vec(),
            content,
            HELVETICA.as_bytes().to_vec(),
        ]
    };
    let zeros = packed(&vec![b' '; 64 << 20]);
    let fault = read(&file(&objects(stream("/Filter /FlateDecode", &zeros)), ""), LIMIT).unwrap_err();
    assert_eq!(fault.kind, "too_large", "{fault:?}");
    let twice = packed(&packed(&vec![0; 64 << 20]));
    let fault = read(&file(&objects(stream("/Filter [/FlateDecode /FlateDecode]", &twice)), ""), LIMIT).unwrap_err();
    assert_eq!(fault.kind, "too_large", "{fault:?}");
    // A form that shows itself, and one that is shown without end.
    let mut looped = objects(stream("", b"/X Do"));
    looped.push(stream("/Type /XObject /Subtype /Form /Resources << /XObject << /X 6 0 R >> >>", b"/X Do /X Do"));
    assert!(read(&file(&looped, ""), LIMIT).unwrap_err().message.contains("contain each other"));
    let mut many = objects(stream("/Filter /FlateDecode", &packed("/X Do ".repeat(100_000).as_bytes())));
    many.push(stream("/Type /XObject /Subtype /Form", b"BT /F 1 Tf (x) Tj ET"));
    assert_eq!(read(&file(&many, ""), LIMIT).unwrap_err().kind, "too_large");
    // Object streams unpack while the file is loaded.
    let mut hidden = objects(stream("", b""));
    hidden.push(stream(
        "/Type /ObjStm /N 1 /First 4 /Filter /FlateDecode",
        &packed(&[b"7 0 ".to_vec(), vec![b' '; 64 << 20]].concat()),
    ));
    assert!(read(&file(&hidden, ""), LIMIT).is_err());
}

#[test]
fn ranges_of_widths_cost_no_more_than_they_are_long() {
    let ranges = "0 65535 500 ".repeat(200_000);
    let objects = |widths: &str| {
        [
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
            b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /A 5 0 R >> >> >>".to_vec(),
            stream("", b"BT /A 10 Tf <00010002> Tj 100 0 Td <0001> Tj ET"),
            b"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /UniGB-UCS2-H /DescendantFonts [6 0 R] >>".to_vec(),
            format!("<< /Type /Font /Subtype /CIDFontType2 /DW 600 /W [{widths}] >>").into_bytes(),
        ]
    };
    let font = |widths: &str| {
        let bytes = file(&objects(widths), "");
        let document = lopdf::Document::load_mem(&bytes).unwrap();
        let dictionary = document.get_dictionary((5, 0)).unwrap();
        let font = font::Font::new(&document, dictionary, 1 << 30).unwrap();
        (font.cost, [b"\0\x01", b"\0\x02", b"\0\x09", b"\0\x28"].map(|code| font.measure(code).0))
    };
    let (cost, widths) = font("1 [250 300] 5 20 400 9 [100] 30 50 700 40 40 800");
    assert_eq!(widths, [0.25, 0.3, 0.1, 0.8], "later entries count");
    assert!((100..1000).contains(&cost), "{cost}");
    assert!(font(&ranges).0 >= 600_000, "each entry is paid for");
    let fault = read(&file(&objects(&ranges), ""), 1 << 17).unwrap_err();
    assert_eq!(fault.kind, "too_large", "{fault:?}");
    // One array, shown many times.
    let mut shared = objects(&"0 7 0 R ".repeat(50_000)).to_vec();
    shared.push(format!("[{}]", "500 ".repeat(60_000)).into_bytes());
    let fault = read(&file(&shared, ""), LIMIT).unwrap_err();
    assert_eq!(fault.kind, "too_large", "{fault:?}");
}

#[test]
fn trees_with_circles_and_deep_objects_end() {
    let tree = [
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R 2 0 R 4 0 R] /Count 9 /Parent 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [2 0 R 4 0 R] /Count 9 >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Contents [5 0 R 4 0 R] /Resources 4 0 R >>".to_vec(),
        stream("", b"BT 1 0 0 1 0 0 Tm (unknown font) Tj ET"),
    ];
    assert_eq!(read(&file(&tree, ""), LIMIT).unwrap_err().kind, "no_text");
    for deep in ["[".repeat(200_000), "<< /A ".repeat(100_000), "(".repeat(200_000), "q ".repeat(100_000)] {
        let content = stream("", format!("{deep} BT /F1 9 Tf (x) Tj ET").as_bytes());
        let objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 /Resources << /Font << /F1 5 0 R >> >> >>".to_vec(),
            b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>".to_vec(),
            content,
            HELVETICA.as_bytes().to_vec(),
            deep.into_bytes(),
        ];
        drop(read(&file(&objects, ""), LIMIT));
    }
}

#[test]
fn damage_anywhere_ends_in_a_text_or_a_reject() {
    let good = pages_of(&[FIRST, FIRST], "");
    for end in (0..good.len()).step_by(7) {
        drop(read(&good[..end], LIMIT));
    }
    for at in (0..good.len()).step_by(5) {
        let mut bytes = good.clone();
        bytes[at] = bytes[at].wrapping_add(0x5b);
        drop(read(&bytes, LIMIT));
    }
    assert_eq!(read(b"%PDF-1.4 nothing else", LIMIT).unwrap_err().kind, "damaged");
}
