//! The lines of code of each room, held against `benches/budget/lines.toml`, and the sizes of files and functions.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::sources::{File, sources};

const MOST_OF_FILE: usize = 400;
const MOST_OF_FUNCTION: usize = 50;

/// The comment of the file.
const ABOUT: &str = "\
# The most lines of code of each room: without blanks, comments, tests.rs files and modules of tests. src/*.rs are the files
# beside the rooms of src. `./test lines` writes this file. A commit that raises a number says why.
";

type Long = BTreeMap<String, usize>;

#[derive(Deserialize, Serialize)]
struct Budgets {
    library: usize,
    rooms: BTreeMap<String, usize>,
    /// Files and functions that are still above the most lines. The lists only get shorter, and their numbers smaller.
    long_files: Long,
    long_functions: Long,
}

fn path() -> PathBuf {
    support::root().join("benches/budget/lines.toml")
}

fn budgets() -> Budgets {
    let text = fs::read_to_string(path()).expect("the file can be read");
    toml::from_str(&text).expect("it has budgets")
}

/// The files of the library and of the tool.
fn rust_files() -> Vec<File> {
    let mut files = sources("src", "rs");
    files.extend(sources("cli/src", "rs"));
    assert!(files.len() > 200, "{} files are too few", files.len());
    files
}

fn room(path: &str) -> String {
    let parts: Vec<_> = path.split('/').collect();
    match parts[..] {
        ["src", "store", "redis", ..] => "src/store/redis".to_owned(),
        ["src", _] => "src/*.rs".to_owned(),
        ["lua", ..] => "lua".to_owned(),
        [first, second, ..] => format!("{first}/{second}"),
        _ => unreachable!("all files are in folders"),
    }
}

fn counted() -> Budgets {
    let mut rooms = BTreeMap::new();
    let (mut long_files, mut long_functions) = (Long::new(), Long::new());
    for file in rust_files().into_iter().chain(sources("lua", "lua")) {
        let lines = file.lines();
        *rooms.entry(room(&file.path)).or_default() += lines.len();
        for (name, count) in functions(&lines) {
            if count > MOST_OF_FUNCTION {
                let longest = long_functions.entry(format!("{} {name}", file.path));
                let longest: &mut usize = longest.or_default();
                *longest = count.max(*longest);
            }
        }
        if lines.len() > MOST_OF_FILE {
            long_files.insert(file.path.clone(), lines.len());
        }
    }
    let library = rooms.iter().filter(|(room, _)| room.starts_with("src/"));
    Budgets {
        library: library.map(|(_, lines)| lines).sum(),
        rooms,
        long_files,
        long_functions,
    }
}

/// `RENEW_LINES` writes the numbers of the rooms.
fn renew(mut counted: Budgets, listed: &Budgets) {
    shorten(&mut counted.long_files, &listed.long_files);
    shorten(&mut counted.long_functions, &listed.long_functions);
    let text = toml::to_string(&counted).expect("it can be written");
    fs::write(path(), format!("{ABOUT}\n{text}")).expect("the file can be written");
}

fn shorten(counted: &mut Long, listed: &Long) {
    counted.retain(|it, lines| {
        *lines = (*lines).min(*listed.get(it).unwrap_or(&0));
        *lines > 0
    });
}

/// Fails where one has more lines than listed, or is listed and short.
fn agree(counted: &Long, listed: &Long, most: usize) {
    for (it, lines) in counted {
        let most = *listed.get(it).unwrap_or(&most);
        assert!(*lines <= most, "{it} has {lines} lines, at most {most}");
    }
    let short: Vec<_> = listed
        .keys()
        .filter(|it| !counted.contains_key(*it))
        .collect();
    assert!(
        short.is_empty(),
        "{short:?} are short now: `./test lines` takes them from the list"
    );
}

#[test]
fn no_room_has_more_lines_than_its_number() {
    let (listed, counted) = (budgets(), counted());
    if env::var_os("RENEW_LINES").is_some() {
        return renew(counted, &listed);
    }
    let mut broken = Vec::new();
    let library = ("the library".to_owned(), counted.library, listed.library);
    let rooms = counted.rooms.into_iter().map(|(room, lines)| {
        let most = listed.rooms.get(&room);
        (room, lines, most.copied().unwrap_or(0))
    });
    for (room, lines, most) in rooms.chain([library]) {
        if lines > most {
            broken.push(format!(
                "{room} has {lines} lines, {} too many",
                lines - most
            ));
        }
    }
    assert!(
        broken.is_empty(),
        "{broken:#?}\n`./test lines` renews the numbers; a commit that raises one says why"
    );
}

#[test]
fn no_file_has_more_than_400_lines_and_no_function_more_than_50() {
    let (counted, listed) = (counted(), budgets());
    agree(&counted.long_files, &listed.long_files, MOST_OF_FILE);
    let (counted, listed) = (counted.long_functions, listed.long_functions);
    agree(&counted, &listed, MOST_OF_FUNCTION);
}

/// The name and the number of lines of each function in formatted code: it ends with the brace that stands where it
/// begins.
fn functions<'a>(code: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut functions = Vec::new();
    for (begin, line) in code.iter().enumerate() {
        let words = line.trim_start();
        let Some(name) = name(words) else {
            continue;
        };
        let indent = &line[..line.len() - words.len()];
        let ends = |it: &&str| {
            let own = it.strip_prefix(indent);
            own.is_some_and(|it| it == "}" || !it.starts_with(' ') && it.ends_with(['}', ';']))
        };
        let end = code[begin..].iter().position(ends);
        functions.push((name, end.expect("it ends") + 1));
    }
    functions
}

/// The name of a function whose first line this is.
fn name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["const", "async", "unsafe", "extern", "\"C\"", "default"];
    let is_fn =
        |word: &str| words.contains(&word) || word.starts_with("pub") || word.ends_with(')');
    let is_fn = before.split(' ').all(|it| it.is_empty() || is_fn(it));
    let end = after.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'))?;
    (is_fn && end > 0).then(|| &after[..end])
}

#[test]
fn a_function_is_counted_from_its_name_to_its_last_brace() {
    let code = "\
impl It {
    pub(in crate::store) const fn one() -> u8 { 1 }
    fn two(
        &self,
    ) -> bool
    where
        u8: Copy,
    {
        let within = || fn_like();
        true
    }
    fn three(&self);
}";
    let code: Vec<_> = code.lines().collect();
    assert_eq!(functions(&code), [("one", 1), ("two", 9), ("three", 1)]);
}
