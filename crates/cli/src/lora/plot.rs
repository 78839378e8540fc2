//! Draws the losses over the steps as a line chart.

use anyhow::Result;
use plotters::prelude::*;

/// Returns a chart as SVG. It shows the mean training losses and, if there are any, the validation
/// losses.
pub fn svg(trained: &[(u64, f64)], judged: &[(u64, f64)]) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, trained, judged)?;
    Ok(text)
}

fn draw(text: &mut String, trained: &[(u64, f64)], judged: &[(u64, f64)]) -> Result<()> {
    let all = || trained.iter().chain(judged);
    let last = all().map(|point| point.0).max().unwrap_or(0).max(1);
    let most = all().map(|point| point.1).fold(0.1, f64::max);
    let root = SVGBackend::with_string(text, (640, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0..last, 0.0..most * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("steps")
        .y_desc("loss, nats a token")
        .light_line_style(TRANSPARENT)
        .draw()?;
    let lines = [
        ("training", trained, RGBColor(33, 102, 172)),
        ("validation", judged, RGBColor(217, 119, 6)),
    ];
    for (name, points, color) in lines.into_iter().filter(|line| !line.1.is_empty()) {
        let path = PathElement::new(points.to_vec(), color.stroke_width(2));
        let label = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2));
        chart.draw_series([path])?.label(name).legend(label);
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
    }
    chart.configure_series_labels().border_style(BLACK).draw()?;
    Ok(root.present()?)
}
