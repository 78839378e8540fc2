//! The dependencies of crates have no cycles. The imports among the files of a crate have no cycles
//! either.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::{fs, iter};

use serde_json::Value;

use super::{files, show};
use crate::support::{Checked, root};

/// Each crate depends on exactly these crates of the project. Dependencies of tests do not count.
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
        ("metal-check", &["metal-sim"]),
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

/// The imports among the files of a crate have no cycles. An import through a re-export counts as
/// an import of the file that defines the name. A re-export itself does not count as an import.
///
/// Imports by a `bridge.rs` do not count, because this file only lists the functions of its folder
/// that C++ calls.
#[test(simulated = never)]
fn files_import_each_other_one_way() -> Checked {
    let crates = fs::read_dir(root().join("crates"))?;
    let crates = crates.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    for source in crates.iter().map(|folder| folder.join("src")).chain([root().join("src")]) {
        let mut library = Library::default();
        for path in files(&source.to_string_lossy(), &["rs"])? {
            let file = path.strip_prefix(&source)?.to_string_lossy();
            library.add_file(&file, &fs::read_to_string(&path)?);
        }
        let imports = library.imports();
        assert!(imports.len() > 2, "{}: {imports:?}", show(&source));
        let circles = circles(imports);
        assert!(circles.is_empty(), "{} has a circle among {circles:#?}", show(&source));
    }
    Ok(())
}

#[test(simulated = never)]
fn circles_of_files_are_found() {
    let circles = |leaf: &str| {
        let mut library = Library::default();
        library
            .add_file("lib.rs", "mod a;\npub mod b;\npub use b::{\n    One, leaf::G as H,\n};\n");
        library.add_file("a.rs", "use crate::{H, One, b};\nfn f(_: One) {\n    b::leaf::g();\n}\n");
        library.add_file("b/mod.rs", "pub mod leaf;\nmod one;\npub use one::One;\n");
        library.add_file("b/one.rs", "mod inner {\n    use super::super::leaf::g;\n}\n");
        library.add_file("b/leaf.rs", leaf);
        circles(library.imports()).into_iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>()
    };
    assert!(circles("use std::fs;\npub fn g() {}\n").is_empty());
    assert!(circles("#[cfg(test)]\nmod tests {\n    use crate::One;\n}\n").is_empty());
    let two = ["crate::b::leaf crate::b::one", "crate::b::one crate::b::leaf"];
    assert_eq!(circles("pub use crate::One;\n"), two);
    assert_eq!(circles("fn g() {\n    super::super::a::f()\n}\n").len(), 4);
}

/// Imports between files, which are named by their modules. The first module imports the second.
type Edges = BTreeSet<(String, String)>;

/// Repeatedly removes imports that cannot be part of a cycle. The remaining imports are in
/// cycles or between cycles.
fn circles(mut edges: Edges) -> Edges {
    loop {
        let left = edges.clone();
        edges.retain(|(from, to)| {
            left.iter().any(|(_, to)| to == from) && left.iter().any(|(from, _)| from == to)
        });
        if edges.len() == left.len() {
            return edges;
        }
    }
}

/// A module: a file, or an inline module in a file.
struct Module {
    /// The module of the file.
    file: String,
    /// The paths that the module uses. The bool says whether the module re-exports the name.
    paths: Vec<(String, bool)>,
    /// The path of each imported name.
    names: BTreeMap<String, String>,
}

/// The modules of a crate. The keys are paths such as `crate::array::view`.
#[derive(Default)]
struct Library(BTreeMap<String, Module>);

impl Library {
    fn add_file(&mut self, file: &str, text: &str) {
        let names = file.trim_end_matches(".rs").split('/');
        let names = names.filter(|name| !["mod", "lib", "main"].contains(name));
        let module: Vec<_> = iter::once("crate").chain(names).collect();
        self.add(&module.join("::"), &module.join("::"), text);
    }

    fn add(&mut self, module: &str, file: &str, text: &str) {
        let (mut code, mut before) = (String::new(), "");
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        while let Some(line) = lines.next() {
            let opened = line.strip_suffix(" {").and_then(|line| line.split_once("mod "));
            if let Some((_, name)) = opened.filter(|(before, _)| is_visibility(before)) {
                let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
                let inside: Vec<_> = lines.by_ref().take_while(|line| *line != end).collect();
                if before != "#[cfg(test)]" {
                    self.add(&format!("{module}::{name}"), file, &inside.join("\n"));
                }
            } else {
                code += line;
                code.push('\n');
            }
            before = line;
        }
        let (mut paths, mut names) = (Vec::new(), BTreeMap::new());
        for statement in code.split(';') {
            let (rest, uses) = statement.rsplit_once("use ").unwrap_or((statement, ""));
            let visibility = rest.rsplit('\n').next().unwrap_or_default();
            let (rest, uses) =
                if is_visibility(visibility) { (rest, uses) } else { (statement, "") };
            for leaf in leaves(uses) {
                let (path, name) = leaf.split_once(" as ").unwrap_or((&leaf, ""));
                let path = path.trim_end_matches("::self");
                let last = path.rsplit("::").next().unwrap_or_default();
                names.insert(if name.is_empty() { last } else { name }.to_owned(), path.to_owned());
                let is_type = last.starts_with(char::is_uppercase);
                let again = is_type && words(&code).filter(|word| *word == last).count() > 1;
                paths.push((path.to_owned(), !visibility.is_empty() && !again));
            }
            let named = words(rest).filter(|word| !word.ends_with('!') && word.contains("::"));
            paths.extend(named.map(|word| (word.trim_end_matches(':').to_owned(), false)));
        }
        self.0.insert(module.to_owned(), Module { file: file.to_owned(), paths, names });
    }

    fn imports(&self) -> Edges {
        let mut edges = Edges::new();
        for (name, module) in &self.0 {
            let from = &module.file;
            for (path, public) in module.paths.iter().filter(|_| !from.ends_with("::bridge")) {
                let Some(to) = self.origin(name, path).filter(|to| *to != from) else { continue };
                if !(*public && to.starts_with(&format!("{from}::"))) {
                    edges.insert((from.clone(), to.to_owned()));
                }
            }
        }
        edges
    }

    /// Finds the file that defines the name at a path, as seen from a module. Returns `None` if
    /// another crate defines it.
    fn origin(&self, module: &str, path: &str) -> Option<&str> {
        let (mut at, mut rest) = (module.to_owned(), path);
        while !rest.is_empty() {
            let (name, after) = rest.split_once("::").unwrap_or((rest, ""));
            let below = format!("{at}::{name}");
            match name {
                "crate" => "crate".clone_into(&mut at),
                "self" => {}
                "super" => at.truncate(at.rfind("::")?),
                _ if self.0.contains_key(&below) => at = below,
                _ => match self.0.get(&at)?.names.get(name) {
                    Some(used) if used != name && !used.starts_with(&format!("{name}::")) => {
                        return self.origin(&at, &format!("{used}::{after}"));
                    }
                    _ if rest == path => return None,
                    _ => break,
                },
            }
            rest = after;
        }
        Some(&self.0.get(&at)?.file)
    }
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && !"_:$!".contains(c))
}

fn is_visibility(text: &str) -> bool {
    text.trim().is_empty() || text.trim().starts_with("pub")
}

/// The single paths of a `use`. For example, `a::{b, c::d}` has the paths `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((path, inside)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let mut depth = 0;
    let parts = inside.strip_suffix('}').unwrap_or(inside).split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let leaves = parts.filter(|part| !part.trim().is_empty()).flat_map(leaves);
    leaves.map(|leaf| format!("{path}{leaf}")).collect()
}
