//! Crates depend on each other one way, and so do the modules of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::slice;

use serde_json::Value;

use super::{files, library_lines};
use crate::support::{Checked, root};

/// Each crate of the project depends on these others, apart from crates that only its tests need.
#[test(simulated = never)]
fn crates_depend_one_way() -> Checked {
    let expected: BTreeMap<&str, &[&str]> = [
        ("mlx-primitives", &["cuda", "kernels", "metal-sim"][..]),
        ("build", &[]),
        ("catalog", &["mlx-primitives", "check"]),
        ("check", &["mlx-primitives"]),
        ("cli", &["mlx-primitives", "catalog", "check", "kernels", "llama", "ranks"]),
        ("cuda", &["build"]),
        ("kernels", &[]),
        ("llama", &["mlx-primitives"]),
        ("metal-sim", &["build"]),
        ("ranks", &["mlx-primitives", "llama"]),
    ]
    .into();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let short = |name: &str| name.strip_prefix("mlx-primitives-").unwrap_or(name).to_owned();
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if package["publish"].is_array() {
            continue; // serves tests alone
        }
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let own = dependencies.filter(|d| d["path"].is_string() && d["kind"].is_null());
        let names: BTreeSet<_> = own.filter_map(|d| d["name"].as_str()).map(short).collect();
        found.insert(short(package["name"].as_str().unwrap_or_default()), names);
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, dependencies) in expected {
        let dependencies: BTreeSet<_> = dependencies.iter().map(|d| (*d).to_owned()).collect();
        assert_eq!(found[name], dependencies, "{name}");
    }
    Ok(())
}

/// Modules of one folder, whether files or folders, import each other in one direction. A folder's
/// own `mod.rs` and the files in the folder count as one.
///
/// Imports by a room's `bridge.rs` do not count: it names the functions of the room that C++ calls.
#[test(simulated = never)]
fn imports_have_no_cycles() -> Checked {
    for source in
        ["src", "crates/llama/src", "crates/ranks/src", "crates/check/src", "crates/cli/src"]
    {
        imports_of(source)?;
    }
    Ok(())
}

/// The `mod.rs` of a room of the Llama only names its files, so that an import of the room is one
/// of a file, and the directions among files are checked too.
#[test]
fn rooms_of_the_llama_are_their_files() -> Checked {
    let rooms = files("crates/llama/src", &["rs"])?.into_iter().filter(|path| {
        let inside = path.strip_prefix(root().join("crates/llama/src"));
        inside.is_ok_and(|path| path.ends_with("mod.rs") && path.components().count() == 2)
    });
    let mut count = 0;
    for path in rooms {
        let text = fs::read_to_string(&path)?;
        let code: String = library_lines(&text).map(|(_, line)| format!("{line}\n")).collect();
        for statement in code.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let names = statement.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            let only_names = names.starts_with("mod ") || names.starts_with("use ");
            assert!(only_names, "{}: {statement}", path.display());
        }
        count += 1;
    }
    assert_eq!(count, 6);
    Ok(())
}

fn imports_of(source: &str) -> Checked {
    let library = Library::read(source)?;
    let mut folders: BTreeMap<Module, Edges> = BTreeMap::new();
    for (module, text) in library.modules.iter().filter(|(module, _)| !of_bridge(module)) {
        for import in library.imports(module, text) {
            let shared = module.iter().zip(&import).take_while(|(a, b)| a == b).count();
            let (folder, rest) = import.split_at(shared);
            if let (Some(from), Some(to)) = (module.get(shared), rest.first()) {
                let edges = folders.entry(folder.to_vec()).or_default();
                edges.insert((from.clone(), to.clone()));
            }
        }
    }
    assert!(folders.values().any(|edges| edges.len() > 10), "{source}: {folders:?}");
    for (folder, mut edges) in folders {
        loop {
            let before = edges.len();
            let left = edges.clone();
            edges.retain(|(from, to)| {
                left.iter().any(|(_, to)| to == from) && left.iter().any(|(from, _)| from == to)
            });
            if edges.len() == before {
                break;
            }
        }
        assert!(edges.is_empty(), "{source}/{} has a circle among {edges:?}", folder.join("/"));
    }
    Ok(())
}

/// The names from the root of the library: `["llama", "cache", "plain"]`.
type Module = Vec<String>;
/// Pairs of modules in one folder, the first of which imports the second.
type Edges = BTreeSet<(String, String)>;

fn of_bridge(module: &Module) -> bool {
    module.last().is_some_and(|last| last == "bridge")
}

/// The library's modules and their text without comments.
struct Library {
    modules: BTreeMap<Module, String>,
}

impl Library {
    fn read(source: &str) -> anyhow::Result<Self> {
        let mut modules = BTreeMap::new();
        for path in files(source, &["rs"])? {
            let inside = path.strip_prefix(root().join(source))?.with_extension("");
            let mut names: Module =
                inside.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            names.retain(|name| name != "mod" && name != "lib" && name != "main");
            let text = fs::read_to_string(&path)?;
            let code = library_lines(&text).map(|(_, line)| format!("{line}\n")).collect();
            modules.insert(names, code);
        }
        Ok(Self { modules })
    }

    /// The modules that a module names by paths from `crate` or `super`, including those behind a
    /// folder's `use`.
    fn imports(&self, module: &Module, text: &str) -> BTreeSet<Module> {
        let mut found = BTreeSet::new();
        let paths = text.match_indices("crate::").chain(text.match_indices("super::"));
        for (at, _) in paths.filter(|(at, _)| !text[..*at].ends_with("::")) {
            for path in leaves(&text[at..]) {
                let mut target = module.clone();
                let mut names: Vec<&str> = path.split("::").collect();
                while let Some(first @ ("crate" | "super")) = names.first().copied() {
                    target.truncate(if first == "super" { target.len().max(1) - 1 } else { 0 });
                    names.remove(0);
                }
                for name in names {
                    target.push(name.to_owned());
                    if !self.modules.contains_key(&target) {
                        target.pop();
                        target.extend(self.origin(&target, name));
                        break;
                    }
                }
                found.insert(target);
            }
        }
        found
    }

    /// The module in a folder that the folder's own file takes a name from.
    fn origin(&self, folder: &[String], name: &str) -> Option<String> {
        let text = self.modules.get(folder)?;
        let uses =
            text.match_indices("use ").flat_map(|(at, word)| leaves(&text[at + word.len()..]));
        let mut firsts = uses.filter_map(|path| {
            let (first, rest) = path.split_once("::")?;
            (rest.rsplit("::").next() == Some(name)).then(|| first.to_owned())
        });
        firsts.find(|first| self.modules.contains_key(&[folder, slice::from_ref(first)].concat()))
    }
}

/// The paths at the beginning of a text, `a::{b, c::d}` as `a::b` and `a::c::d`.
fn leaves(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let Some(inside) = rest.strip_prefix('{').filter(|_| path.ends_with("::")) else {
        return vec![path.to_owned()];
    };
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in inside.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                parts.last_mut().into_iter().for_each(|part| part.push(c));
            }
        }
    }
    let below = parts.iter().flat_map(|part| leaves(part.trim()));
    below.map(|leaf| format!("{path}{leaf}")).collect()
}
