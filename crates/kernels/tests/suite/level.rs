use mlx_primitives_kernels::simd::level::Level;

#[test]
fn a_named_level_is_taken_when_supported() {
    for level in Level::available() {
        assert_eq!(Level::choose(Some(level.name())), level);
    }
}

#[test]
fn an_unknown_or_foreign_name_falls_back_to_the_best() {
    let best = Level::available().next().unwrap();
    assert_eq!(Level::choose(None), best);
    assert_eq!(Level::choose(Some("")), best);
    assert_eq!(Level::choose(Some("sse9")), best);
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    assert_eq!(Level::choose(Some(foreign)), best);
}
