use mlx_primitives::{Array, transforms::compile, ops};
#[test]
fn zz() -> anyhow::Result<()> {
    let x = Array::from_slice(&[1.0f32; 48], &[2, 3, 8])?;
    let f = compile(|p| { println!("traced"); Ok(vec![p[0].add(1.0)?]) }, false)?;
    for i in 0..3 { println!("call {i}"); let _ = f.call(&[&x])?; }
    println!("eval"); f.call(&[&x])?[0].eval()?;
    for i in 0..3 { println!("call {i}"); let _ = f.call(&[&x])?; }
    let f = compile(|p| { println!("traced"); Ok(vec![ops::softmax(&p[0])?]) }, false)?;
    for i in 0..3 { println!("call {i}"); let _ = f.call(&[&x])?; }
    Ok(())
}
