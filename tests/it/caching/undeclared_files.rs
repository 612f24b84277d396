//! Tests of programs and functions that read more than their cache key covers, and of what they keep secret.

use std::time::{Duration, Instant};

use crate::harness::project::{Mill, Told};

const ROWS: usize = 3;

/// Returns a project with rows and this node, named `made`.
fn project(node: &str) -> Mill {
    let mill = Mill::new();
    let rows: String =
        (0..ROWS).map(|n| format!("{{\"id\": \"d{n}\", \"title\": \"t{n}\", \"text\": \"text {n}\"}}\n")).collect();
    mill.write("rows.jsonl", &rows);
    std::fs::create_dir(mill.path("steps")).expect("a folder");
    mill.write("data.txt", "one");
    let read = "  rows: {op: read, with: {path: rows.jsonl, as: document}}\n";
    mill.write("pipeline.yaml", &format!("name: n\nnodes:\n{read}  made: {node}\n"));
    mill
}

fn map(text: &str, more: &str) -> Mill {
    let mill = project(&format!("{{op: map, from: rows, with: {{python: \"steps/f.py:f\"{more}}}}}"));
    mill.write("steps/f.py", text);
    mill
}

fn exec(command: &str, more: &str) -> Mill {
    project(&format!("{{op: exec, from: rows, with: {{command: {command}, as: document{more}}}}}"))
}

fn shown(mill: &Mill) -> String {
    mill.call(&["show", "made", "--json", "-n", "0"]).exit(0).stdout
}

fn is_observed() -> bool {
    cfg!(target_os = "linux")
}

/// Replaces a file by text of the same length, and keeps its time, as `rsync -t` and `tar` do.
fn replace_silently(mill: &Mill, name: &str, text: &str) {
    let path = mill.path(name);
    let (before, time) = (mill.read(name), std::fs::metadata(&path).expect("a file").modified().expect("a time"));
    assert_eq!(before.len(), text.len());
    mill.write(name, text);
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(time).expect("a time");
}

/// Lets Python write bytecode for the modules of a folder.
fn compile(mill: &Mill, folder: &str) {
    let mut python = std::process::Command::new("python3");
    let done = python.args(["-m", "compileall", "-q", folder]).current_dir(mill.path("")).status().expect("python3");
    assert!(done.success());
    assert!(mill.path(folder).join("__pycache__").is_dir());
}

#[test]
fn a_module_edited_to_equal_length_and_time_gives_new_results() {
    let mill = map("import second\ndef f(text):\n    return {'text': second.MARK + text}\n", "");
    mill.write("steps/second.py", "MARK = 'one '\n");
    compile(&mill, "steps");
    mill.run(&[]).exit(0);
    assert_eq!(shown(&mill).matches("one text").count(), ROWS);
    replace_silently(&mill, "steps/second.py", "MARK = 'two '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert_eq!(shown(&mill).matches("two text").count(), ROWS, "{}", shown(&mill));

    let mill = exec("[python3, steps/run.py]", ", files: [steps/second.py]");
    let copy = "import sys, shutil, second\nprint(second.MARK, file=sys.stderr)\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n";
    mill.write("steps/run.py", copy);
    mill.write("steps/second.py", "MARK = 'one '\n");
    compile(&mill, "steps");
    mill.run(&[]).exit(0);
    replace_silently(&mill, "steps/second.py", "MARK = 'two '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    let logs = mill.call(&["logs", "--node", "made"]).stdout;
    assert!(logs.contains("two"), "{logs}");
}

#[test]
fn a_function_gets_the_columns_that_it_takes_however_it_is_defined() {
    let both = "{'text': text + ' ' + (title or '-')}";
    for text in [
        // The last definition in the text is another one.
        format!("def f(text, title=None): return {both}\nif False:\n    def f(text): return {{}}\n"),
        format!(
            "import sys\nif sys.version_info > (3,):\n    def f(text, title=None): return {both}\nelse:\n    def f(text): return {{}}\n"
        ),
        format!(
            "try:\n    def f(text, title=None): return {both}\nexcept ImportError:\n    def f(text): return {{}}\n"
        ),
        format!("def g(text, title=None): return {both}\ndef f(text): return {{}}\nf = g\n"),
        format!(
            "def g(text, title=None, end=''): return {both}\ndef f(text): return {{}}\nimport functools\nf = functools.partial(g, end='.')\n"
        ),
        format!(
            "from typing import overload\n@overload\ndef f(text: int): ...\n@overload\ndef f(text: str): ...\ndef f(text, title=None): return {both}\n"
        ),
        format!(
            "def make():\n    def f(text, title=None): return {both}\n    return f\ndef f(text): return {{}}\nglobals()['f'] = make()\n"
        ),
        format!(
            "import functools\ndef mark(g):\n    @functools.wraps(g)\n    def h(*a, **k): return g(*a, **k)\n    return h\n@mark\ndef f(text, title=None): return {both}\n"
        ),
        format!(
            "import functools\ndef mark(g):\n    @functools.wraps(g)\n    def h(text, title): return {both}\n    return h\n@mark\ndef f(text): return {{}}\n"
        ),
        format!("import functools\n@functools.lru_cache\ndef f(text, title=None): return {both}\n"),
        "from helper import f\ndef g(text): return {}\n".to_owned(),
        format!("class f:\n    def __call__(self, text, title=None): return {both}\n"),
        format!("class B:\n    def __call__(self, text, title=None): return {both}\nclass f(B):\n    pass\n"),
        format!("class f:\n    @staticmethod\n    def __call__(text, title=None): return {both}\n"),
        format!(
            "class M:\n    def __call__(self, text, title=None): return {both}\n    def f(self, text): return {{}}\nf = M()\n"
        ),
        format!("class M:\n    def g(self, text, title=None): return {both}\ndef f(text): return {{}}\nf = M().g\n"),
        format!("def f(text): return {{}}\nf = lambda text, title=None: {both}\n"),
        format!("exec('def f(text, title=None): return {}')\n", both.replace('\'', "\"")),
    ] {
        for more in ["", ", remember: row"] {
            let mill = map(&text, more);
            mill.write("steps/helper.py", &format!("def f(text, title=None): return {both}\n"));
            let told = mill.run(&[]);
            assert_eq!(told.code, 0, "{text}{}", told.stdout);
            assert!(shown(&mill).contains("text 1 t1"), "{text}{more}: {}", shown(&mill));
        }
    }
}

/// Asserts that a run is refused because of a file, that the remedies let it pass, and that the file then counts.
fn refused(mill: &Mill, file: &str) {
    let told = mill.run(&[]).exit(1);
    let said = format!("{file}, which its cache key does not contain");
    assert!(told.stdout.contains(&said), "{}: {}", mill.read("pipeline.yaml"), told.stdout);
    assert!(told.stdout.contains(&format!("files: [{file}]")), "{}", told.stdout);
    // A module that was loaded decides the output.
    let is_module = told.stdout.contains(&format!("loaded {file}"));
    assert!(is_module || told.stdout.contains("`writes`"), "{}", told.stdout);
    let pipeline = mill.read("pipeline.yaml");
    let with = |param: &str| {
        let before = "from: rows, with: {";
        mill.write("pipeline.yaml", &pipeline.replace(before, &format!("{before}{param}: [{file}], ")));
    };
    with("files");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    let text = mill.read(file).replace("one", "two");
    mill.write(file, &text);
    assert_eq!(mill.run(&[]).exit(0).ran(), "made", "its content counts");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    if is_module {
        return;
    }
    with("writes");
    mill.run(&[]).exit(0);
    let text = mill.read(file).replace("two", "one");
    mill.write(file, &text);
    assert_eq!(mill.run(&[]).exit(0).ran(), "", "what does not decide the output is not in the key");
}

#[test]
fn a_file_that_a_function_reads_is_in_its_key_or_refused() {
    if !is_observed() {
        return;
    }
    for body in [
        "open('data.txt').read()",
        "open('data.txt', 'r+').read()",
        "open('/proc/self/cwd/data.txt').read()",
        "__import__('pathlib').Path('steps/../data.txt').read_text()",
        "__import__('os').popen('cat data.txt').read()",
        "__import__('subprocess').check_output(['cat', 'data.txt']).decode()",
        "__import__('io').FileIO('data.txt').read().decode()",
        "str(__import__('ctypes').CDLL(None).open(b'data.txt', 0) > 0)",
        "__import__('multiprocessing').get_context('fork').Pool(1).map(len, [open('data.txt').read()])[0] and 'one'",
    ] {
        refused(&map(&format!("def f(text):\n    return {{'text': {body}}}\n"), ""), "data.txt");
    }
    let mill = map("WORDS = open('data.txt').read()\ndef f(text): return {'text': WORDS}\n", ", remember: row");
    refused(&mill, "data.txt");
}

#[test]
fn code_that_is_found_by_its_path_is_in_the_key_or_refused() {
    if !is_observed() {
        return;
    }
    for load in [
        "import importlib.util as u\ns = u.spec_from_file_location('m', 'other/' + 'm.py')\nm = u.module_from_spec(s)\ns.loader.exec_module(m)\nMARK = m.MARK",
        "import runpy\nMARK = runpy.run_path('other/' + 'm.py')['MARK']",
        "exec(open('other/m.py').read())",
        "import sys\nsys.path.insert(0, 'other')\nMARK = __import__('m').MARK",
    ] {
        let mill = map(&format!("{load}\ndef f(text): return {{'text': MARK + text}}\n"), "");
        std::fs::create_dir(mill.path("other")).expect("a folder");
        mill.write("other/m.py", "MARK = 'one'\n");
        refused(&mill, "other/m.py");
    }
}

#[test]
fn a_module_in_an_archive_is_known_by_the_archive() {
    if !is_observed() {
        return;
    }
    let text =
        "import sys\nsys.path.insert(0, 'lib' + '.zip')\nimport m\ndef f(text): return {'text': m.MARK + text}\n";
    let mill = map(text, "");
    let pack = |mark: &str| {
        let script = format!(
            "import zipfile\nwith zipfile.ZipFile('lib.zip', 'w') as z: z.writestr('m.py', 'MARK = \"{mark}\"')"
        );
        let mut python = std::process::Command::new("python3");
        assert!(python.args(["-c", &script]).current_dir(mill.path("")).status().expect("python3").success());
    };
    pack("one");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("files: [lib.zip]"), "{}", told.stdout);
    let pipeline = mill.read("pipeline.yaml");
    mill.write("pipeline.yaml", &pipeline.replace("from: rows, with: {", "from: rows, with: {files: [lib.zip], "));
    mill.run(&[]).exit(0);
    pack("two");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill).contains("twotext 1"), "{}", shown(&mill));
}

#[test]
fn a_linked_function_is_known_by_where_the_link_leads() {
    let mill = map("", "");
    std::fs::remove_file(mill.path("steps/f.py")).expect("there");
    std::fs::create_dir(mill.path("shared")).expect("a folder");
    for name in ["one", "two"] {
        let text = format!("from helper import MARK\ndef f(text): return {{'text': MARK + '{name} ' + text}}\n");
        mill.write(&format!("shared/{name}.py"), &text);
    }
    mill.write("shared/helper.py", "MARK = 'here '\n");
    let link = |to: &str| {
        drop(std::fs::remove_file(mill.path("steps/f.py")));
        std::os::unix::fs::symlink(format!("../shared/{to}.py"), mill.path("steps/f.py")).expect("a link");
    };
    link("one");
    mill.run(&[]).exit(0);
    assert!(shown(&mill).contains("here one text 1"));
    link("two");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill).contains("here two text 1"));
    mill.write("shared/helper.py", "MARK = 'there '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill).contains("there two text 1"));
}

#[test]
fn a_file_that_a_program_reads_is_in_its_key_or_refused() {
    if !is_observed() {
        return;
    }
    for script in
        ["cat data.txt >&2\ncat\n", "x=data; cat \"$x.txt\" >&2\ncat\n", "cd steps; grep -c one ../data.txt >&2; cat\n"]
    {
        let mill = exec("[sh, steps/run.sh]", "");
        mill.write("steps/run.sh", script);
        refused(&mill, "data.txt");
    }
    let copy = "import sys, shutil, helper\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n";
    for flags in ["", "-B, ", "-E, "] {
        let mill = exec(&format!("[python3, {flags}steps/run.py]"), "");
        mill.write("steps/run.py", copy);
        mill.write("steps/helper.py", "MARK = 'one'\n");
        compile(&mill, "steps");
        refused(&mill, "steps/helper.py");
    }
    // What it makes itself is its own.
    let mill = exec("[sh, steps/run.sh]", "");
    mill.write("steps/run.sh", "echo a > tmp.txt; mv tmp.txt kept.txt; cat kept.txt >&2; ls > /dev/null; cat\n");
    mill.run(&[]).exit(0);
    let mill = exec("[sh, -c, \"cat data.txt $PWD/more.txt >&2; cat\"]", "");
    mill.write("more.txt", "one");
    mill.run(&[]).exit(0);
    mill.write("more.txt", "two");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
}

/// Asserts that a run is refused because the list of the folder `data` decides its result, and that the remedy counts it.
fn refused_for_its_list(mill: &Mill) {
    std::fs::create_dir_all(mill.path("data/deep")).expect("folders");
    mill.write("data/a.txt", "one");
    mill.write("data/deep/b.txt", "one");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("read data/"), "{}{}", mill.read("pipeline.yaml"), told.stdout);
    let pipeline = mill.read("pipeline.yaml");
    mill.write("pipeline.yaml", &pipeline.replace("from: rows, with: {", "from: rows, with: {files: [data/], "));
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.write("data/c.txt", "one");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made", "a new file counts");
    std::fs::rename(mill.path("data/deep/b.txt"), mill.path("data/deep/d.txt")).expect("renamed");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made", "a name counts");
}

#[test]
fn the_list_of_a_folder_is_in_the_key_or_refused() {
    let function = |body: &str| map(&format!("def f(text):\n    return {{'text': str({body})}}\n"), "");
    for body in [
        "sorted(__import__('os').listdir('data'))",
        "sorted(entry.name for entry in __import__('os').scandir(b'data'))",
        "sorted(__import__('glob').glob('data/**', recursive=True))",
        "sorted(__import__('pathlib').Path('data').iterdir())",
        "sorted(__import__('os').walk('data'))",
    ] {
        refused_for_its_list(&function(body));
    }
    if !is_observed() {
        return;
    }
    refused_for_its_list(&function("__import__('subprocess').check_output(['ls', '-R', 'data'])"));
    for script in ["ls -R data >&2\ncat\n", "x=data; cat $x/*.txt $x/*/* >&2\ncat\n", "find data -type f >&2; cat\n"] {
        let mill = exec("[sh, steps/run.sh]", "");
        mill.write("steps/run.sh", script);
        refused_for_its_list(&mill);
    }
    let mill = exec("[python3, steps/run.py]", "");
    let copy = "import os, sys, shutil\nos.listdir(os.open('data', os.O_RDONLY))\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n";
    mill.write("steps/run.py", copy);
    refused_for_its_list(&mill);
}

#[test]
fn a_pattern_stands_for_the_list_of_its_folders() {
    let mill = map(
        "import glob\nNAMES = sorted(glob.glob('*/words.txt'))\ndef f(text): return {'text': ' '.join(NAMES)}\n",
        "",
    );
    for folder in ["one", "two"] {
        std::fs::create_dir(mill.path(folder)).expect("a folder");
    }
    mill.write("one/words.txt", "");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("read the list of the working directory, which"), "{}", told.stdout);
    assert!(told.stdout.contains(r#"files: [\"*\"]"#), "{}", told.stdout);
    let pipeline = mill.read("pipeline.yaml");
    let named = "from: rows, with: {files: [\"*\", \"*/words.txt\"], ";
    mill.write("pipeline.yaml", &pipeline.replace("from: rows, with: {", named));
    mill.run(&[]).exit(0);
    std::fs::rename(mill.path("one/words.txt"), mill.path("two/words.txt")).expect("renamed");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill).contains("two/words.txt"), "{}", shown(&mill));
}

#[test]
fn folders_that_are_listed_to_find_modules_are_not_data() {
    let text = "import pkgutil, importlib.metadata, space.inner.m\nlist(pkgutil.iter_modules())\n\
                list(importlib.metadata.distributions())\ndef f(text): return {'text': space.inner.m.MARK}\n";
    let copy = "import sys, shutil, space.inner.m\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n";
    let functions = map(text, "");
    let programs = exec("[python3, steps/run.py]", ", files: [steps]");
    for mill in [functions, programs] {
        std::fs::create_dir_all(mill.path("steps/space/inner")).expect("folders");
        mill.write("steps/space/inner/m.py", "MARK = 'one'\n");
        mill.write("steps/run.py", copy);
        mill.run(&[]).exit(0);
    }
    // What the program makes is its own, wherever it is.
    let mill = exec("[sh, -c, \"mkdir -p new/deep; ls new >&2; rm -r new; ls >&2; ls .. >/dev/null; cat\"]", "");
    mill.run(&[]).exit(0);
}

#[test]
fn an_environment_in_the_project_and_hidden_folders_of_the_home_are_no_files_of_the_user() {
    let text = "open('venv/lib/x.txt').read()\nimport os\nopen(os.path.expanduser('~/.cache/x/data.txt')).read()\n\
                open('/etc/passwd').read()\nopen('pyproject.toml').read()\ndef f(text): return {'text': 'one'}\n";
    let mill = map(text, "");
    for folder in ["venv/lib", "home/.cache/x"] {
        std::fs::create_dir_all(mill.path(folder)).expect("folders");
    }
    for file in ["venv/pyvenv.cfg", "venv/lib/x.txt", "home/.cache/x/data.txt", "pyproject.toml"] {
        mill.write(file, "");
    }
    let run = |home: &str| {
        let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
        Told::new(command.env("HOME", mill.path(home)).output().expect("a run"))
    };
    run("home").exit(0);
}

#[test]
fn a_process_that_holds_the_output_of_a_program_open_holds_up_nothing() {
    let start = Instant::now();
    let mill = exec("[sh, -c, \"setsid sleep 100 & cat\"]", "");
    mill.run(&[]).exit(0);
    assert_eq!(shown(&mill).lines().count(), ROWS);
    let mill = project(
        "{op: exec, from: {rows: rows}, with: {command: [sh, -c, \"setsid sleep 100 & cp {rows} {out}\"], outputs: {out: table}}}",
    );
    mill.run(&[]).exit(0);
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
    // A stream that is not complete when its program ends is an error, not a shorter table.
    let mill = exec("[sh, -c, \"(sleep 100; cat) & exit 0\"]", "");
    mill.run(&[]).exit(1);
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
}

const SECRET: &str = "Gemüse-\"77/xyz";

/// Runs with a variable whose name does not look like one of a secret.
fn run_with_secret(mill: &Mill) -> Told {
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    Told::new(command.env("PLAIN_SETTING", SECRET).output().expect("a run"))
}

/// Asserts that neither the output nor a file of the store contains the secret.
fn assert_hidden(mill: &Mill, told: &Told) {
    assert!(!told.stdout.contains("77/xyz") && !told.stderr.contains("77/xyz"), "{told:?}");
    let mut pending = vec![mill.store_path()];
    while let Some(folder) = pending.pop() {
        for path in crate::harness::project::files_in(&folder) {
            if path.is_dir() {
                pending.push(path);
            } else {
                let bytes = std::fs::read(&path).expect("a file");
                assert!(!bytes.windows(6).any(|part| part == b"77/xyz"), "{}", path.display());
            }
        }
    }
}

#[test]
fn what_environment_names_is_secret_whatever_its_name() {
    let environment = ", environment: [PLAIN_SETTING]";
    let text = "import os\nX = os.environ['PLAIN_SETTING']\nprint('has', X)\ndef f(text, id):\n    if id == 'd0': raise ValueError(X)\n    \
                if id == 'd1': return {'text': 'x' + X}\n    return {}\n";
    for more in ["", ", remember: row"] {
        let mill = map(text, &format!("{environment}{more}"));
        let told = run_with_secret(&mill);
        assert!(told.code == 0 || told.code == 3, "{told:?}");
        assert_hidden(&mill, &told);
        let rejects = mill.call(&["show", "made", "--rejects", "--json", "-n", "0"]).exit(0).stdout;
        assert!(rejects.contains("ValueError: [secret PLAIN_SETTING]"), "{rejects}");
        assert!(rejects.contains("the value of the environment variable `PLAIN_SETTING`"), "{rejects}");
        assert!(mill.call(&["logs", "--node", "made"]).stdout.contains("has [secret PLAIN_SETTING]"));
    }
    let mill = exec("[sh, -c, \"echo $PLAIN_SETTING >&2; exit 3\"]", environment);
    let told = run_with_secret(&mill);
    assert_eq!(told.code, 1);
    assert!(told.stdout.contains("[secret PLAIN_SETTING]"), "{told:?}");
    assert_hidden(&mill, &told);
}

/// Leads the link `cur` to a folder.
fn lead(mill: &Mill, to: &str) {
    drop(std::fs::remove_file(mill.path("cur")));
    std::os::unix::fs::symlink(to, mill.path("cur")).expect("a link");
}

/// Two folders with the same code and other words, and the link `cur` to the first one.
fn versions(mill: &Mill, code: &str, text: &str) {
    for (folder, word) in [("v1", "one"), ("v2", "two")] {
        std::fs::create_dir_all(mill.path(folder)).expect("a folder");
        mill.write(&format!("{folder}/w.txt"), word);
        mill.write(&format!("{folder}/{code}"), text);
    }
    lead(mill, "v1");
}

#[test]
fn a_file_behind_a_link_counts_by_the_link() {
    if !is_observed() {
        return;
    }
    let both = ", files: [v1, v2]";
    let function = map("def f(text): return {'text': open('cur/w.txt').read()}\n", both);
    let program = exec("[sh, steps/run.sh]", both);
    program.write("steps/run.sh", "x=cur; cat $x/w.txt >&2; cat\n");
    let lists = map("import os\ndef f(text): return {'text': str(os.listdir('cur'))}\n", both);
    for mill in [function, program, lists] {
        versions(&mill, "code.txt", "");
        let told = mill.run(&[]).exit(1);
        assert!(told.stdout.contains("read cur"), "{}", told.stdout);
        let pipeline = mill.read("pipeline.yaml");
        mill.write("pipeline.yaml", &pipeline.replace("files: [v1, v2]", "files: [cur]"));
        mill.run(&[]).exit(0);
        lead(&mill, "v2");
        assert_eq!(mill.run(&[]).exit(0).ran(), "made");
        assert_eq!(mill.run(&[]).exit(0).ran(), "");
    }
    // A link inside a folder that the key has.
    let mill = map("def f(text): return {'text': open('deep/cur/w.txt').read()}\n", ", files: [deep]");
    std::fs::create_dir_all(mill.path("deep/v1")).expect("folders");
    mill.write("deep/v1/w.txt", "one");
    std::os::unix::fs::symlink("v1", mill.path("deep/cur")).expect("a link");
    mill.run(&[]).exit(0);
}

#[test]
fn code_behind_a_link_counts_by_where_the_link_leads() {
    for beside in ["os.path.dirname(__file__)", "os.path.dirname(os.path.realpath(__file__))"] {
        let text = format!("import os\ndef f(text): return {{'text': open({beside} + '/w.txt').read()}}\n");
        let mill = project("{op: map, from: rows, with: {python: \"cur/f.py:f\", files: [v1, v2, cur/w.txt]}}");
        versions(&mill, "f.py", &text);
        mill.run(&[]).exit(0);
        lead(&mill, "v2");
        assert_eq!(mill.run(&[]).exit(0).ran(), "made");
        assert_eq!(shown(&mill).matches("two").count(), ROWS, "{}", shown(&mill));
    }
    let mill = exec("[python3, cur/run.py]", ", files: [v1, v2]");
    let text = "import os, sys, shutil\nprint(open(os.path.dirname(os.path.realpath(__file__)) + '/w.txt').read(), file=sys.stderr)\nshutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)\n";
    versions(&mill, "run.py", text);
    mill.run(&[]).exit(0);
    lead(&mill, "v2");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
}

#[test]
fn a_pattern_does_not_stand_for_hidden_files_and_empty_folders() {
    if !is_observed() {
        return;
    }
    let list =
        |folder: &str| format!("import os\ndef f(text): return {{'text': str(sorted(os.listdir('{folder}')))}}\n");
    for pattern in ["data/*", "data/**/*"] {
        let mill = map(&list("data"), &format!(", files: [\"{pattern}\"]"));
        std::fs::create_dir(mill.path("data")).expect("a folder");
        mill.write("data/a.txt", "one");
        let told = mill.run(&[]).exit(1);
        assert!(told.stdout.contains("files: [data/]"), "{}", told.stdout);
    }
    // The working directory has the store: its pattern takes files and folders that are visible.
    let mill = map(&list("."), ", files: [\"*\"]");
    mill.run(&[]).exit(0);
    std::fs::create_dir(mill.path("empty")).expect("a folder");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill).contains("empty"));
}
