//! `metal-sim-gpu CLANG CACHE SOURCE.metal [INCLUDE_DIR | -DMACRO...]`: prints the rewritten source
//! that [`metal_sim::gpu::rewrite`] returns.

use metal_sim::{Compiler, Constants, Error, Result, Source, gpu};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(clang), Some(cache), Some(path)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        let usage = "usage: metal-sim-gpu CLANG CACHE SOURCE.metal [INCLUDE_DIR | -DMACRO...]";
        return Err(Error::NoCompiler(usage.to_string()));
    };
    let source =
        arguments.fold(Source::new(path), |source, argument| match argument.strip_prefix("-D") {
            Some(define) => source.define(define),
            None => source.include_dir(argument),
        });
    let compiler = Compiler::at(clang)?;
    print!("{}", gpu::rewrite(&source, &compiler, cache.as_ref(), &Constants::new())?);
    Ok(())
}
