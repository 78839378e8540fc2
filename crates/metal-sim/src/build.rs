//! Compiles rewritten source to a shared library, and caches the library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::compiler::Compiler;
use crate::error::{Error, Result, at_path};
use crate::{cache, shim};

const COMMON_FLAGS: &str = "-x c++ -std=c++17 -nostdinc -nostdinc++ -fPIC -fno-exceptions \
    -fno-rtti -fsigned-char -w";

/// Uninitialized variables are filled with a pattern, so that the use of such a variable changes
/// the results.
const KERNEL_FLAGS: &str = "-O1 -gline-tables-only -fno-threadsafe-statics -ffp-contract=off \
    -ftrivial-auto-var-init=pattern -fno-vectorize -fno-slp-vectorize -fno-strict-aliasing \
    -fno-delete-null-pointer-checks -Xclang -ffloat16-excess-precision=none \
    -Xclang -fbfloat16-excess-precision=none";

/// KernelAddressSanitizer (KASAN) calls a function for every access, with the exact size and the
/// known alignment of the access. KASAN also keeps the optimizer from adding accesses, but not from
/// removing them. The last three flags prevent the optimizer from merging accesses on different
/// lines, and from turning a loop that copies elements into a memcpy.
const CHECK_FLAGS: &str = "-fsanitize=kernel-address,array-bounds,integer-divide-by-zero \
    -fsanitize-recover=kernel-address,array-bounds,integer-divide-by-zero \
    -mllvm -asan-instrumentation-with-call-threshold=0 -mllvm -asan-stack=0 \
    -mllvm -asan-globals=0 -mllvm -asan-opt-same-temp=0 \
    -mllvm -asan-kernel-mem-intrinsic-prefix=1 -mllvm -asan-mapping-scale=4 \
    -mllvm -asan-opt-globals=0 -mllvm -simplifycfg-hoist-common=false \
    -mllvm -simplifycfg-sink-common=false -mllvm -disable-loop-idiom-all";

/// These flags compile optimized IR to machine code. With -O0, the back end does not optimize
/// the instructions. This optimization would take longer than all earlier passes.
const CODE_FLAGS: &str = "-O0 -fPIC -w -ffp-contract=off -c";

const RUNTIME_FLAGS: &str = "-O2 -c";

/// Without `-fno-sanitize=undefined`, zig would compile and link UBSan's runtime, which takes half
/// a minute the first time. Our runtime defines the UBSan functions that kernels call.
const LINK_FLAGS: &str = "-shared -nostdlib++ -fno-sanitize=undefined";

/// The compiler's messages for each source text that it refused, so that this process does not
/// compile such a text twice.
static REFUSED: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Compiles `text` to a library, unless the cache has the library.
pub(crate) fn build(
    source: &Path,
    compiler: &Compiler,
    folder: &Path,
    text: &str,
) -> Result<PathBuf> {
    build_with(source, compiler, folder, text, &[])
}

/// Compiles `text` and modules of LLVM IR to one library. The IR is already optimized, so only the
/// checks are added to it and every access is kept.
pub(crate) fn build_with(
    source: &Path,
    compiler: &Compiler,
    folder: &Path,
    text: &str,
    modules: &[String],
) -> Result<PathBuf> {
    let identity = compiler.identity();
    let parts = [identity.as_str(), env!("CARGO_PKG_VERSION"), shim::RUNTIME, text];
    let flags = [COMMON_FLAGS, KERNEL_FLAGS, CHECK_FLAGS, CODE_FLAGS];
    let modules_text = modules.iter().map(String::as_str);
    let key = cache::key(parts.into_iter().chain(flags).chain(modules_text));
    let library = folder.join(format!("{key}.so"));
    if library.is_file() {
        return Ok(library);
    }
    let refused = || REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(messages) = refused().get(&key).cloned() {
        return Err(Error::Compile { path: source.to_owned(), messages });
    }
    let draft = cache::draft(folder);
    at_path(&draft, std::fs::create_dir_all(&draft))?;
    let (kernels, runtime) = (draft.join("kernels.cpp"), draft.join("runtime.cpp"));
    at_path(&kernels, std::fs::write(&kernels, text))?;
    at_path(&runtime, std::fs::write(&runtime, shim::RUNTIME))?;
    let library_draft = draft.join("kernels.so");
    // All libraries link this object file, so it is cached separately.
    let runtime_key = cache::key([identity.as_str(), shim::RUNTIME, RUNTIME_FLAGS].into_iter());
    let runtime_object = folder.join(format!("runtime-{runtime_key}.o"));
    let mut objects = vec![draft.join("kernels.o"), runtime_object.clone()];
    let run = |flags: &[&str], inputs: &[&Path], output: &Path| {
        let mut arguments = compiler.machine_flags();
        arguments.extend(flags.iter().flat_map(|text| text.split_whitespace()).map(String::from));
        arguments.extend(inputs.iter().map(|path| path.display().to_string()));
        arguments.extend(["-o".to_string(), output.display().to_string()]);
        arguments.extend(flags.contains(&LINK_FLAGS).then(|| "-lm".to_string()));
        compiler.compile(folder, source, arguments).map(drop)
    };
    let result = (|| {
        let optimized = draft.join("kernels.bc");
        let lines = compiler.line_flags();
        let flags = [COMMON_FLAGS, KERNEL_FLAGS, CHECK_FLAGS, lines, "-emit-llvm -c"];
        run(&flags, &[&kernels], &optimized)?;
        run(&[CODE_FLAGS], &[&optimized], &objects[0])?;
        if !runtime_object.is_file() {
            let object = draft.join("runtime.o");
            run(&[COMMON_FLAGS, RUNTIME_FLAGS], &[&runtime], &object)?;
            cache::publish(&object, &runtime_object)?;
        }
        for (i, module) in modules.iter().enumerate() {
            let path = draft.join(format!("module{i}.ll"));
            at_path(&path, std::fs::write(&path, module))?;
            objects.push(path.with_extension("o"));
            run(&[CODE_FLAGS, CHECK_FLAGS], &[&path], &objects[2 + i])?;
        }
        let inputs: Vec<&Path> = objects.iter().map(PathBuf::as_path).collect();
        run(&[LINK_FLAGS], &inputs, &library_draft)?;
        cache::publish(&library_draft, &library)
    })();
    let _ = std::fs::remove_dir_all(&draft);
    if let Err(Error::Compile { messages, .. }) = &result {
        refused().insert(key, messages.clone());
    }
    result.map(|()| library)
}
