use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Plots the held-out loss over the steps.
pub fn draw(path: &str, points: &[(usize, f32)]) -> Result<()> {
    let last = points.last().map_or(1, |point| point.0).max(1);
    let most = points.iter().map(|point| point.1).fold(0.0, f32::max);
    let root = SVGBackend::new(path, (640, 400)).into_drawing_area();
    let failed = |e: DrawingAreaErrorKind<_>| anyhow!("the plot: {e}");
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("LoRA fine-tune of the demo model", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0..last, 0f32..most * 1.1)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("steps")
        .y_desc("held-out loss, nats a token")
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    let line = RGBColor(33, 102, 172);
    let path = PathElement::new(points.to_vec(), line.stroke_width(2));
    chart.draw_series([path]).map_err(failed)?;
    let dots = points.iter().map(|&point| Circle::new(point, 3, line.filled()));
    chart.draw_series(dots).map_err(failed)?;
    root.present().map_err(failed)
}
