//! The page itself, made one file: style, script and data stand inside the HTML.

use super::data::Life;

const FRAME: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// One after another they are one script.
const SCRIPT: [&str; 6] = [
    include_str!("page/data.js"),
    include_str!("page/paint.js"),
    include_str!("page/timeline.js"),
    include_str!("page/strips.js"),
    include_str!("page/panel.js"),
    include_str!("page/main.js"),
];

/// The page that shows `life`, whole: it asks nothing of the network.
pub fn html(life: &Life) -> Result<String, serde_json::Error> {
    let life = harmless(&serde_json::to_string(life)?);
    let parts = [("{{style}}", STYLE), ("{{life}}", &life), ("{{script}}", &SCRIPT.concat())];
    // In the order in which they stand in the frame: what is put in is never searched.
    let mut out = String::with_capacity(FRAME.len() + STYLE.len() + life.len() + (64 << 10));
    let mut rest = FRAME;
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).expect("the frame has each mark once, in this order");
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// A `<` inside JSON can only stand in a string; escaped, no text can end the element that holds it.
fn harmless(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::data::Meta;

    #[test]
    fn nothing_that_a_life_says_can_leave_its_element() {
        let evil = "</script><script>alert(1)</script>{{script}}<!--";
        let life = Life { meta: Meta { scenario: evil.into(), ..Meta::default() }, ..Life::default() };
        let page = html(&life).unwrap();
        assert_eq!(page.matches("</script>").count(), 2, "the data's and the script's own end");
        assert!(!page.contains("<!--"));
        let (_, data) = page.split_once("id=\"life\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let back: Life = serde_json::from_str(data).unwrap();
        assert_eq!(back.meta.scenario, evil);
    }

    #[test]
    fn the_page_asks_nothing_of_the_network() {
        let page = html(&Life::default()).unwrap();
        for reach in
            ["http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest", "import(", " src="]
        {
            assert!(!page.contains(reach), "{reach}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn the_sample_is_in_the_form_that_the_page_reads() {
        let sample = include_str!("../../tests/viewer/sample.json");
        let life: Life = serde_json::from_str(sample).unwrap();
        assert!(life.items.iter().all(|it| it.l < life.lanes.len()));
    }
}
