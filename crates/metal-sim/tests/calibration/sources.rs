//! MLX's kernels as source: from the headers of the wheel, and from a checkout if there is one.

use metal_sim::{Library, Source};

use crate::{common, variable};

const TYPES: [(&str, &str); 3] =
    [("float32", "float"), ("float16", "half"), ("bfloat16", "bfloat16_t")];

/// The templates of softmax.h and logsumexp.h, instantiated under the names that MLX uses.
fn instances() -> Vec<(&'static str, String, String)> {
    let mut list = Vec::new();
    for (name, kind) in TYPES {
        for (form, template) in [("block", "single_row"), ("looped", "looped")] {
            for op in ["softmax", "logsumexp"] {
                let function = match op {
                    "softmax" => format!("softmax_{template}<{kind}>"),
                    _ => format!(
                        "{}<{kind}>",
                        if form == "block" { "logsumexp" } else { "logsumexp_looped" }
                    ),
                };
                list.push((op, format!("{form}_{op}_{name}"), function));
            }
            if kind != "float" {
                let function = format!("softmax_{template}<{kind}, float>");
                list.push(("softmax", format!("{form}_softmax_precise_{name}"), function));
            }
        }
    }
    list
}

/// Compiles the kernels that one header of the wheel declares. Returns the library and the names of
/// the kernels.
pub fn header(op: &str) -> (Library, Vec<String>) {
    let mut text = String::from("#include <metal_common>\n#include <metal_simdgroup>\n");
    text.push_str("using namespace metal;\n");
    for file in ["utils", op] {
        text.push_str(&format!("#include \"mlx/backend/metal/kernels/{file}.h\"\n"));
    }
    let mut names = Vec::new();
    for (_, name, function) in instances().into_iter().filter(|(of, ..)| *of == op) {
        text.push_str(&format!(
            "template [[host_name(\"{name}\")]] [[kernel]] decltype({function}) {function};\n"
        ));
        names.push(name);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{op}.metal"));
    std::fs::write(&path, text).unwrap();
    let source = Source::new(&path).include_dir(variable("METAL_SIM_MLX_HEADERS"));
    let library = Library::compile(&source, common::compiler(), common::cache());
    (library.unwrap_or_else(|error| panic!("{op}: {error}")), names)
}

/// Compiles a source file of the checkout of MLX that `METAL_SIM_MLX` names.
pub fn checkout(name: &str) -> Library {
    let root = variable("METAL_SIM_MLX");
    let path = root.join(format!("mlx/backend/metal/kernels/{name}.metal"));
    let source = Source::new(path).include_dir(&root);
    let library = Library::compile(&source, common::compiler(), common::cache());
    library.unwrap_or_else(|error| panic!("{name}: {error}"))
}
