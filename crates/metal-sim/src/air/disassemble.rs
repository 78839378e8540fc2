//! Converts LLVM bitcode to text with the compiler that also compiles kernels. LLVM can read
//! bitcode from older versions of LLVM.

use std::path::Path;

use crate::cache;
use crate::compiler::Compiler;
use crate::error::{Error, Result, at_path};

/// The compiler cannot compile bitcode that targets another machine, but it can link the bitcode
/// into an empty program and print the result.
const FLAGS: &str =
    "-x c -w -S -emit-llvm -O0 -Xclang -disable-llvm-passes -Xclang -mlink-bitcode-file -Xclang";

/// Disassembles each module to text.
pub(super) fn text(compiler: &Compiler, folder: &Path, modules: &[Vec<u8>]) -> Result<Vec<String>> {
    let draft = cache::draft(folder);
    at_path(&draft, std::fs::create_dir_all(&draft))?;
    let texts = modules.iter().map(|module| text_in(compiler, &draft, module)).collect();
    let _ = std::fs::remove_dir_all(&draft);
    texts
}

fn text_in(compiler: &Compiler, draft: &Path, module: &[u8]) -> Result<String> {
    // The name of the bitcode file is a hash of its contents, since zig's cache uses only the
    // command and the source as its key.
    let key = cache::key([module].into_iter());
    let [empty, bitcode, text] =
        ["empty.c", &format!("{key}.bc"), &format!("{key}.ll")].map(|name| draft.join(name));
    at_path(&empty, std::fs::write(&empty, ""))?;
    at_path(&bitcode, std::fs::write(&bitcode, module))?;
    let mut arguments: Vec<String> = FLAGS.split(' ').map(String::from).collect();
    let paths = [&bitcode, Path::new("-o"), &text, &empty].map(|path| path.display().to_string());
    arguments.extend(paths);
    let output = compiler.run(Some(draft), arguments)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Load(format!("the bitcode could not be read: {said}")));
    }
    at_path(&text, std::fs::read_to_string(&text))
}
