//! Checks the source tree for the rules that ARCHITECTURE.md states. A stem is the common name of a
//! primitive's source files, such as `softmax`.

mod calls;
mod imports;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Checked, root};
use crate::table::ops::OPS;

/// The folder with the code that compares each op's latency with the latency of MLX's op.
const COMPARISON: &str = "crates/cli/src/ops";

/// The files below a directory with one of these extensions. Panics if it finds no file.
pub fn files(dir: &str, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root().join(dir)];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                if !path.ends_with("target") && !path.ends_with("fixtures") {
                    left.push(path);
                }
            } else if extensions.iter().any(|e| path.extension().is_some_and(|x| x == *e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {extensions:?} in {dir}");
    Ok(found)
}

pub fn show(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The numbered lines of a file that belong to the library, without tests, comments and docs.
fn library_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Stems of files that have no public function in `src/ops/`, such as gradients.
const OTHERS: [&str; 6] =
    ["custom", "fragments", "stored", "norm_grad", "quantized_transposed", "take_grad"];

fn stems() -> anyhow::Result<Vec<String>> {
    let stems: Vec<String> = files("cpp/ops", &["h"])?
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|stem| !OTHERS.contains(&stem.as_str()))
        .collect();
    assert!(stems.len() >= 3, "{stems:?}");
    Ok(stems)
}

#[test(simulated = never)]
fn a_primitive_is_one_stem_in_every_part_and_is_in_the_catalog() -> Checked {
    let text = |dir: &str| -> anyhow::Result<String> {
        Ok(files(dir, &["rs"])?.iter().map(fs::read_to_string).collect::<Result<_, _>>()?)
    };
    let tables = ["tests/catalog/src", COMPARISON];
    let tables = tables.map(|dir| Ok((dir, text(dir)?)));
    let tables = tables.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    for stem in stems()? {
        let declared = fs::read_to_string(root().join(format!("src/ops/{stem}.rs")))?;
        let functions = declared.lines().filter_map(|line| line.strip_prefix("pub fn "));
        let names: Vec<_> = functions.filter_map(|line| line.split(['(', '<']).next()).collect();
        for (dir, text) in &tables {
            let calls = |name: &&str| {
                ['(', ',', ')'].iter().any(|after| text.contains(&format!("ops::{name}{after}")))
            };
            assert!(names.iter().any(calls), "no row of {dir} calls {stem}");
        }
        // The calls in the catalog have no packed arrays or cache states, which these primitives
        // take or return.
        let others = ["quantize", "quantized_matmul", "rope_append"];
        let has_call = others.contains(&&*stem) || OPS.iter().any(|op| op.stem == stem);
        assert!(has_call, "no call of {stem} in tests/catalog/src/ops.rs");
        for path in [
            format!("src/ops/{stem}.rs"),
            format!("cpp/ops/{stem}.h"),
            format!("cpp/ops/{stem}.cpp"),
            format!("metal/{stem}.h"),
            format!("metal/{stem}.metal"),
            format!("crates/kernels/src/{stem}.rs"),
        ] {
            let folder = path.replace(".rs", "/mod.rs"); // if one file would be too long
            let found = root().join(&path).is_file() || root().join(folder).is_file();
            assert!(found, "{stem} lacks {path}");
        }
    }
    Ok(())
}

/// The guide for adding a primitive uses `tanh_gate` as its example. With `softmax` in its place,
/// every file that the guide names must exist.
#[test(simulated = never)]
fn the_guide_names_files_that_exist() -> Checked {
    let guide = fs::read_to_string(root().join("docs/add-a-primitive.md"))?;
    let spans = guide.split('`').skip(1).step_by(2).filter(|span| !span.contains([' ', '<', '\n']));
    let mut paths = 0;
    for span in spans.filter(|span| span.contains('/')) {
        let path = root().join(span.replace("tanh_gate", "softmax"));
        assert!(path.exists(), "docs/add-a-primitive.md names {span}");
        paths += 1;
    }
    assert!(paths >= 15, "{paths} paths");
    Ok(())
}

/// ARCHITECTURE.md follows some calls from file to file. Each of these files must name the next
/// one.
#[test(simulated = never)]
fn files_on_the_way_to_a_kernel_name_the_next() -> Checked {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md"))?;
    let items = text.split("\n- ").filter(|item| item.contains(" → "));
    let mut ways = 0;
    for item in items.filter_map(|item| item.split("\n\n").next()) {
        let mut spans: Vec<&str> = item.split('`').skip(1).step_by(2).collect();
        let launch = spans.pop().unwrap_or_default();
        assert!((3..=6).contains(&spans.len()), "{spans:?}");
        for (index, path) in spans.iter().enumerate() {
            let text = fs::read_to_string(root().join(path))?;
            let Some(next) = spans.get(index + 1) else {
                assert!(text.contains(launch), "{path} lacks {launch}");
                continue;
            };
            let file = Path::new(next).with_extension("").display().to_string();
            let include = file.strip_prefix("cpp/").unwrap_or(&file); // of the header beside it
            let (_, stem) = file.rsplit_once('/').unwrap_or_default();
            let names = [
                (*next).to_owned(),
                format!("{include}."),
                format!(" {stem}.cpp"),
                format!("crate::{stem}("),
            ];
            assert!(names.iter().any(|name| text.contains(name)), "{path} does not name {next}");
        }
        ways += 1;
    }
    assert_eq!(ways, 2);
    Ok(())
}

#[test(simulated = never)]
fn every_part_belongs_to_a_known_primitive() -> Checked {
    let stems = stems()?;
    let shared = ["common", "shared", "rows"];
    for dir in ["cpp/ops", "metal"] {
        for path in files(dir, &["cpp", "h", "metal"])? {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            // If a primitive has several files, their names begin with its stem.
            let part_of = |s: &String| *s == stem || stem.starts_with(&format!("{s}_"));
            let known = [&shared[..], &OTHERS].concat().contains(&&*stem);
            let known = known || stems.iter().any(part_of);
            assert!(known, "{} belongs to no primitive", show(&path));
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn unsafe_says_why_it_is_safe() -> Checked {
    let mut blocks = 0;
    for path in
        [files("src", &["rs"])?, files("crates", &["rs"])?, files("benches", &["rs"])?].concat()
    {
        let text = fs::read_to_string(&path)?;
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("unsafe {") && !code.contains("unsafe impl") {
                continue;
            }
            blocks += 1;
            let above = &lines[number.saturating_sub(3)..number];
            let said = above.iter().any(|line| line.contains("// SAFETY:"));
            assert!(said, "{}:{} lacks // SAFETY:", show(&path), number + 1);
        }
    }
    assert!(blocks > 10, "only {blocks} blocks found");
    Ok(())
}

#[test(simulated = never)]
fn the_library_does_not_panic_by_itself() -> Checked {
    let words = [".unwrap()", "panic!(", "todo!(", "unimplemented!(", "dbg!("];
    let mut libraries = files("src", &["rs"])?;
    for name in ["kernels", "llama", "ranks", "check", "cli", "python"] {
        libraries.extend(files(&format!("crates/{name}/src"), &["rs"])?);
    }
    for path in libraries {
        if show(&path).ends_with("testing.rs") {
            continue; // compiled for tests only
        }
        let text = fs::read_to_string(&path)?;
        for (number, line) in library_lines(&text) {
            for word in words {
                assert!(!line.contains(word), "{}:{} has {word}", show(&path), number + 1);
            }
        }
    }
    Ok(())
}

/// `print!` and `println!` panic if stdout is closed or full. `output.rs` returns an error instead.
#[test(simulated = never)]
fn the_command_prints_without_panicking() -> Checked {
    for path in files("crates/cli/src", &["rs"])? {
        let text = fs::read_to_string(&path)?;
        for (number, line) in library_lines(&text) {
            let found = line.contains("print!(") || line.contains("println!(");
            assert!(!found, "{}:{} prints by a macro", show(&path), number + 1);
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn platforms_are_chosen_by_files_not_by_the_preprocessor() -> Checked {
    for path in files("cpp", &["cpp", "h"])? {
        let text = fs::read_to_string(&path)?;
        for word in ["__APPLE__", "_METAL_"] {
            assert!(!text.contains(word), "{} mentions {word}", show(&path));
        }
    }
    Ok(())
}

/// The precision of a Metal function without `precise::` or `fast::` depends on compiler options.
/// Xcode's compiler and MLX's JIT compiler have different defaults.
#[test(simulated = never)]
fn kernels_say_how_precise_their_functions_are() -> Checked {
    let call = regex::Regex::new(
        r"(?:^|[^\w:.]|(?:^|[^\w])metal::)((?:a?(?:cos|sin|tan)h?|(?:cos|sin|tan)pi|atan2|sincos|exp(?:10|2)?|log(?:10|2)?|powr?|r?sqrt|divide)\()",
    )?;
    let found = |text: &str| -> Option<String> {
        let mut code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let found = code.find_map(|line| call.captures(line))?;
        Some(found[1].to_owned())
    };
    for planted in ["x = log(y)", "exp2(x)", "metal::sqrt(x)", "a*tanh(b)"] {
        assert!(found(planted).is_some(), "{planted}");
    }
    for right in ["precise::log(y)", "fast::exp2(x)", "softmax_exp(x)", "// exp(x)", "x.exp(y)"] {
        assert_eq!(found(right), None, "{right}");
    }
    let mut kernels = files("metal", &["metal", "h"])?;
    kernels.extend(files("examples", &["metal"])?);
    for path in kernels {
        let text = fs::read_to_string(&path)?;
        let text =
            text.split("/**").map(|part| part.split_once("*/").map_or(part, |(_, code)| code));
        let call = found(&text.collect::<String>());
        assert_eq!(call, None, "{} needs precise:: or fast::", show(&path));
    }
    Ok(())
}

#[test(simulated = never)]
fn only_one_file_uses_metal() -> Checked {
    let mut knowing = Vec::new();
    for path in files("cpp", &["cpp", "h"])? {
        let text = fs::read_to_string(&path)?;
        if text.contains("mlx/backend/metal") || text.contains("MTL::Compute") {
            knowing.push(show(&path));
        }
    }
    assert_eq!(knowing, ["cpp/runtime/metal_encoder.cpp"]);
    Ok(())
}

#[test(simulated = never)]
fn closures_hold_no_lanes() -> Checked {
    // In these files, vectors need only CPU features that every machine has. In other files, a
    // closure lacks the target features of its function, so its vector code is not inlined.
    let free = ["scalar.rs", "neon.rs"];
    let lanes = ["V::", "T::", "E::", "Self::load", "_mm", ".0)"];
    for path in files("crates/kernels/src", &["rs"])? {
        if free.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let library: String = library_lines(&text).map(|(_, line)| format!("{line}\n")).collect();
        for start in ["from_fn(", ".map(Self::", ".map(|block|", ".map(|row|", ".map(|lanes|"] {
            for (at, _) in library.match_indices(start) {
                let closure = library[at..].split(';').next().unwrap_or_default();
                let found = lanes.iter().find(|word| closure.contains(**word));
                let file = show(&path);
                assert!(found.is_none(), "{file}: {closure}: not inlined, it has no features");
            }
        }
    }
    Ok(())
}

/// rustfmt and clang-format limit code to 100 columns, but rustfmt does not change comments.
#[test(simulated = never)]
fn files_are_short_and_comments_narrow() -> Checked {
    let mut all = vec![root().join("build.rs")];
    for dir in ["src", "crates", "cpp", "metal", "benches", "examples", "tests"] {
        all.extend(files(dir, &["rs", "cpp", "h", "metal"])?);
    }
    for path in all {
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().count();
        assert!(lines <= 400, "{} has {lines} lines", show(&path));
        for (number, line) in text.lines().enumerate().filter(|(_, l)| l.chars().count() > 100) {
            let comment = line.trim_start().starts_with("//");
            let cannot_break = ["](http", "//! |"].iter().any(|mark| line.contains(mark));
            assert!(!comment || cannot_break, "{}:{} is wider than 100", show(&path), number + 1);
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn bridges_are_where_the_build_looks() -> Checked {
    let build = fs::read_to_string(root().join("cmake/bridge.rs"))?;
    for path in files("src", &["rs"])? {
        let bridges = fs::read_to_string(&path)?.matches("#[cxx::bridge").count();
        let named = build.contains(&format!("\"{}\"", show(&path)));
        assert_eq!(bridges, usize::from(named), "{}", show(&path));
    }
    Ok(())
}
