//! The page of the server example, in a real browser.

use serde_json::json;

use super::chromium::Page;
use support::{example::Example, redis::Server};

const TAB: (&str, &str, u32) = ("Tab", "", 9);
const ENTER: (&str, &str, u32) = ("Enter", "\r", 13);
const SPACE: (&str, &str, u32) = (" ", " ", 32);
const RIGHT: (&str, &str, u32) = ("ArrowRight", "", 39);

/// Opens the page of a server. Ends the test if there is no browser.
macro_rules! open {
    ($server:expr) => {{
        let Some(mut page) = Page::open().await else {
            return;
        };
        page.load($server.address()).await;
        page
    }};
}

const PAUSE: &str = "$('pause').click()";
/// No request is under way.
const QUIET: &str = "flying === 0";

fn left(card: usize) -> String {
    format!("document.querySelectorAll('#rules b')[{card}].textContent")
}

#[tokio::test]
async fn the_page_sends_requests_and_shows_what_each_rule_has_left() {
    let server = Example::start(&[]);
    let mut page = open!(server);
    page.until("document.querySelectorAll('#rules article').length === 3")
        .await;
    assert_eq!(
        page.eval("[...document.querySelectorAll('#rules h2')].map(it => it.textContent)")
            .await,
        json!([
            "ip 10 in any 1 s",
            "ip 40 in any 10 s",
            "ip 120 in any 1 min"
        ])
    );
    page.until("counts.admitted >= 2").await;
    page.until(&format!("parseInt({}) <= 117", left(2))).await;
    assert_eq!(
        page.eval("$('store').textContent").await,
        "The counts are in the memory of this process."
    );
    page.until("$('last').textContent.includes('ratelimit-policy: ')")
        .await;
    // Each bar is drawn, and the newest is at the right.
    let drawn = "[...document.querySelectorAll('canvas')].every(it =>
        it.getContext('2d').getImageData(0, 0, it.width, it.height).data.some(byte => byte))";
    page.until(drawn).await;
    // More than any 10 s admit, even on a slow machine.
    page.eval("for (let i = 0; i < 3; i++) $('burst').click()")
        .await;
    page.until("counts.denied > 0").await;
    page.screenshot("desktop").await;
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

/// At the default pace, the example's rules never deny.
#[tokio::test]
async fn the_default_rate_fits_the_default_rules_for_ever() {
    let server = Example::start(&[]);
    let mut page = open!(server);
    page.until("rules.size === 3").await;
    let fits = "[...rules.values()].every(it => $('rate').value * it.window / 1000 <= it.full / 2)";
    assert_eq!(page.eval(fits).await, true);
    // The units of a burst come back within a minute.
    assert_eq!(
        page.eval("[...rules.values()].every(it => it.window <= 60e3)")
            .await,
        true
    );
}

#[tokio::test]
async fn pause_stops_requests_and_reset_frees_what_they_used() {
    let server = Example::start(&["--limit", "ip=4/1d"]);
    let mut page = open!(server);
    page.until("counts.admitted > 0").await;
    page.eval("$('burst').click()").await;
    page.until(&format!(
        "counts.denied > 0 && {QUIET} && {}.startsWith('0 left · denies a cost of 1 for ')",
        left(0)
    ))
    .await;

    page.eval(PAUSE).await;
    page.until(QUIET).await;
    // At twenty a second, the page would send requests while it asks three times for the remaining units.
    page.eval("$('rate').value = 20").await;
    let tally = "counts.admitted + counts.denied + flying";
    let sent = page.eval(tally).await;
    page.eval("window.polls = 0; window.was = polledAt").await;
    page.until("polledAt !== was && (was = polledAt) && ++polls === 3")
        .await;
    assert_eq!(page.eval(tally).await, sent);
    assert_eq!(page.eval("$('pause').textContent").await, "Resume");

    page.eval("$('reset').click()").await;
    page.until(&format!("{} === '4 left'", left(0))).await;
    page.until("counts.denied === 0 && $('denied').textContent === '0'")
        .await;
    page.eval(PAUSE).await;
    page.until("counts.admitted > 0").await;
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

#[tokio::test]
async fn a_browser_that_is_denied_gets_the_page_and_sees_why() {
    let server = Example::start(&["--limit", "ip=0/1d"]);
    let mut page = open!(server);
    let status = "performance.getEntriesByType('navigation')[0].responseStatus";
    // Under a limit of 0, no request ever fits.
    assert_eq!(page.eval(status).await, 429);
    page.until(&format!(
        "{} === '0 left · denies a cost of 1 always'",
        left(0)
    ))
    .await;
    page.until("counts.denied > 0").await;
}

#[tokio::test]
async fn the_page_is_the_same_with_every_style_of_headers() {
    for style in ["draft11", "draft6", "legacy", "none"] {
        let args = ["--limit", "ip=3/1d,5/2d", "--headers", style];
        let server = Example::start(&args);
        let mut page = open!(server);
        page.until("rules.size === 2 && $('last').textContent !== ''")
            .await;
        page.eval("$('burst').click()").await;
        page.until(&format!(
            "counts.denied > 0 && {}.startsWith('0 left · denies') && {}.startsWith('2 left')",
            left(0),
            left(1)
        ))
        .await;
        let lines = page.eval("$('last').textContent").await;
        let lines = lines.as_str().unwrap();
        assert_eq!(lines.contains("\nratelimit-policy: "), style == "draft11");
        assert_eq!(lines.contains("\nratelimit-reset: "), style == "draft6");
        assert_eq!(lines.contains("\nx-ratelimit-reset: "), style == "legacy");
        assert!(page.errors().is_empty(), "{:?}", page.errors());
    }
}

#[tokio::test]
async fn what_a_shadow_would_deny_is_shown_though_nothing_is_denied() {
    let server = Example::start(&["--limit", "ip=2/1d", "--shadow"]);
    let mut page = open!(server);
    page.eval("$('burst').click()").await;
    page.until(&format!(
        "+$('would').textContent > 0 && {}.startsWith('0 left · would deny a cost of 1 for ')",
        left(0)
    ))
    .await;
    assert_eq!(page.eval("counts.denied").await, 0);
    assert_eq!(page.eval("$('would-item').hidden").await, false);
    assert_eq!(
        page.eval("document.querySelector('.mark').checkVisibility()")
            .await,
        true
    );
    page.screenshot("shadow").await;
}

#[tokio::test]
async fn a_shadow_beside_a_limit_has_a_card_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.toml");
    let limits = "[limits]\nip = '9/1d'\n'header:x-key' = { rules = '2/1d', shadow = true }";
    std::fs::write(&config, limits).unwrap();
    let server = Example::start(&["--config", config.to_str().unwrap()]);
    let mut page = open!(server);
    page.until("rules.size === 2").await;
    page.eval("$('pause').click(); $('header').value = 'x-key: alice'; $('reset').click()")
        .await;
    page.until(&format!(
        "{QUIET} && $('said').textContent === 'The counts are reset'"
    ))
    .await;
    page.eval("$('burst').click()").await;
    page.until(&format!("{QUIET} && requests.length === 20"))
        .await;
    // With 20 requests, the address may send 9. The shadow would have admitted 2 of these.
    let parts = |id: &str| {
        format!(
            "(rule => KINDS.map((_, part) => requests.filter(it => kind(rule, it) === part).length))(rules.get('{id}'))"
        )
    };
    assert_eq!(page.eval(&parts("ip.0")).await, json!([9, 11, 0, 0, 0]));
    assert_eq!(
        page.eval(&parts("header-x-key.0")).await,
        json!([2, 0, 11, 7, 0])
    );
    assert_eq!(
        page.eval("[counts.admitted, counts.denied, counts.would]")
            .await,
        json!([9, 11, 7])
    );
    page.until(&format!(
        "{}.startsWith('0 left · would deny') && {}.startsWith('0 left · denies')",
        left(0),
        left(1)
    ))
    .await;
    page.screenshot("shadow-beside").await;
}

#[tokio::test]
async fn the_page_says_that_redis_is_gone_and_then_that_it_is_back() {
    let mut redis = Server::start();
    let url = redis.url();
    for (policy, expected) in [
        ("open", "every request is served, without limits"),
        ("local", "this process limits requests by itself"),
        ("closed", "requests are rejected with 503"),
    ] {
        // Two processes share the limit while Redis is away.
        let args = ["--redis", &url, "--on-failure", policy, "--replicas", "2"];
        let args = [&args[..], &["--limit", "ip=90/1d", "--timeout", "1s"]].concat();
        let server = Example::start(&args);
        let mut page = open!(server);
        page.until("$('store').textContent === 'The counts are in Redis, which answers.'")
            .await;
        page.until(&format!("{}.endsWith(' left')", left(0))).await;

        redis.kill();
        page.until(&format!("$('store').textContent.includes('{expected}')"))
            .await;
        page.until(&if policy == "local" {
            format!(
                "parseInt({}) <= 45 && document.querySelector('.note').textContent.includes('share: 45.')",
                left(0)
            )
        } else {
            // No card shows the units from before.
            format!("{} === 'unknown' && counts.undecided > 0", left(0))
        })
        .await;
        page.screenshot(&format!("redis-gone-{policy}")).await;

        redis.restart();
        page.until("$('store').textContent === 'The counts are in Redis, which answers.'")
            .await;
        page.until(&format!("{}.endsWith(' left')", left(0))).await;
        assert!(page.errors().is_empty(), "{:?}", page.errors());
    }
}

#[tokio::test]
async fn the_page_says_that_its_server_is_gone_and_sends_nothing() {
    let server = Example::start(&[]);
    let mut page = open!(server);
    page.until("counts.admitted > 0").await;
    drop(server);
    page.until(
        "$('store').textContent === 'The server does not answer. Nothing is sent until it does.'",
    )
    .await;
    page.until(&format!("{} === 'unknown'", left(0))).await;
}

#[tokio::test]
async fn a_header_that_the_page_sends_is_limited_by_its_value() {
    let server = Example::start(&["--limit", "header:x-api-key=2/1d", "--limit", "ip=90/1d"]);
    let mut page = open!(server);
    page.until("document.querySelector('.note')?.textContent === 'Does not apply: the request has no x-api-key header.'")
        .await;
    page.until("counts.admitted > 0").await;
    let drawn =
        "requests.map(it => [...rules.values()].map(rule => kind(rule, it))).find(() => true)";
    assert_eq!(page.eval(drawn).await, json!([null, 0]));
    for (value, expected) in [
        ("alice", format!("{}.startsWith('0 left')", left(0))),
        // The browser cannot send this value, so the page sends nothing.
        (
            "☃",
            format!("{} === '' && $('header').ariaInvalid === 'true'", left(0)),
        ),
        ("bob", format!("{}.startsWith('0 left')", left(0))),
    ] {
        page.eval(&format!(
            "$('header').value = 'x-api-key: {value}'; $('header').dispatchEvent(new Event('change')); $('burst').click()"
        ))
        .await;
        page.until(&expected).await;
    }
    page.screenshot("header").await;
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

#[tokio::test]
async fn slots_are_shown_as_in_use_of_all_while_responses_run() {
    let slots = [
        "--limit",
        "ip=3/10s@concurrent",
        "--limit",
        "ip=9000/month:15@UTC",
    ];
    let server = Example::start(&slots);
    let mut page = open!(server);
    page.until("rules.size === 2 && !$('hold-label').hidden")
        .await;
    assert_eq!(
        page.eval("[...document.querySelectorAll('#rules h2')].map(it => it.textContent)")
            .await,
        json!(["ip 3 at a time", "ip 9000 each month from day 15 in UTC"])
    );
    assert_eq!(
        page.eval("$('rules').querySelector('canvas').checkVisibility()")
            .await,
        false
    );
    page.eval("$('hold').value = 3000; $('burst').click()")
        .await;
    page.until(&format!(
        "counts.denied > 0 && {} === '3 of 3 in use · denies until one is free'",
        left(0)
    ))
    .await;
    page.screenshot("slots").await;
    page.eval(PAUSE).await;
    page.until(&format!("{QUIET} && {} === '0 of 3 in use'", left(0)))
        .await;
    let told = "document.querySelector('[role=meter]').getAttribute('aria-valuetext')";
    assert_eq!(page.eval(told).await, "0 of 3 in use");
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

#[tokio::test]
async fn contributors_are_shown_under_the_rule_whose_window_they_are_counted_over() {
    let limits = ["--limit", "ip=50/10s,90/1h", "--limit", "header:x-key=9/1d"];
    let server = Example::start(&[&limits[..], &["--contributors", "header:x-user"]].concat());
    let mut page = open!(server);
    page.until("rules.size === 3").await;
    page.eval("$('header').value = 'x-user: alice'; $('burst').click()")
        .await;
    let shown = "[...document.querySelectorAll('.by')].map(it => it.checkVisibility() ? it.textContent : '')";
    page.until(&format!(
        "/^,Used in 1 h by: alice \\d+,$/.test({shown}.join())"
    ))
    .await;
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

#[tokio::test]
async fn the_page_is_as_wide_as_a_phone() {
    let limits = [
        "--limit",
        "header:x-a-rather-long-name-of-a-header=100000/30d",
        "--limit",
        "ip=10/1s,99/1h",
    ];
    let server = Example::start(&limits);
    let mut page = open!(server);
    page.until("counts.admitted > 0").await;
    for (width, height) in [(360, 740), (320, 568), (1280, 800)] {
        page.resize(width, height).await;
        page.until(&format!("innerWidth === {width}")).await;
        let wide = "Math.max(...[...document.querySelectorAll('body *')]
            .map(it => it.getBoundingClientRect().right), document.documentElement.scrollWidth)";
        let wide = page.eval(wide).await.as_f64().unwrap();
        assert!(wide <= width.into(), "{wide} of {width}");
        // Large enough for a thumb.
        let small = "[...document.querySelectorAll('button, input, select')].filter(it =>
            it.checkVisibility() && it.getBoundingClientRect().height < 32).length";
        assert_eq!(page.eval(small).await, 0);
        page.screenshot(&format!("width-{width}")).await;
    }
}

#[tokio::test]
async fn the_keyboard_reaches_and_works_every_control() {
    let server = Example::start(&["--limit", "ip=1000/1d", "--limit", "header:x-api-key=9/1d"]);
    let mut page = open!(server);
    page.until("!$('header-label').hidden && !$('reset').hidden")
        .await;
    let focused = "document.activeElement.id";
    for control in ["rate", "cost", "header", "pause", "burst", "reset"] {
        page.press(TAB).await;
        assert_eq!(page.eval(focused).await, control);
        let ring = "getComputedStyle(document.activeElement).outlineStyle";
        assert_eq!(page.eval(ring).await, "solid", "{control}");
        match control {
            "rate" => {
                page.press(RIGHT).await;
                assert_eq!(page.eval("$('rate').value").await, "2");
                let told = "$('rate').getAttribute('aria-valuetext')";
                assert_eq!(page.eval(told).await, "2 requests a second");
            }
            "pause" => {
                page.press(ENTER).await;
                assert_eq!(page.eval("paused").await, true);
                page.until(QUIET).await;
            }
            "burst" => {
                let before = page.eval("counts.admitted").await.as_u64().unwrap();
                page.press(SPACE).await;
                page.until(&format!("counts.admitted === {}", before + 20))
                    .await;
            }
            "reset" => {
                page.press(ENTER).await;
                page.until("$('said').textContent === 'The counts are reset'")
                    .await;
                page.until("counts.admitted === 0").await;
            }
            _ => {}
        }
    }
    assert!(page.errors().is_empty(), "{:?}", page.errors());
}

#[tokio::test]
async fn a_screen_reader_finds_a_name_for_everything() {
    let server = Example::start(&[
        "--limit",
        "ip=10/1s,99/1h",
        "--limit",
        "header:x-api-key=9/1d",
    ]);
    let mut page = open!(server);
    page.until("counts.admitted > 0 && !$('header-label').hidden")
        .await;
    let nodes = page.accessible().await;
    for (role, name) in [
        ("heading", "sluicegate: example server"),
        ("status", ""),
        ("slider", "Requests a second: 1"),
        ("combobox", "Cost of each"),
        ("textbox", "Header to send"),
        ("button", "Pause"),
        ("button", "Burst of 20"),
        ("button", "Reset counts"),
        ("article", "ip 10 in any 1 s"),
        ("meter", "Left under ip: 99 in any 1 h"),
        ("image", "Requests of the last 1 d, the newest at the right"),
    ] {
        let found = nodes.iter().any(|it| it.0 == role && it.1 == name);
        assert!(found, "no {role} `{name}`: {nodes:#?}");
    }
    for (role, name) in &nodes {
        let needs_name = [
            "slider", "combobox", "textbox", "button", "article", "meter", "image",
        ];
        assert!(
            !needs_name.contains(&role.as_str()) || !name.is_empty(),
            "{role}"
        );
    }
    // Screen readers do not read out the parts that change all the time, but do read out events.
    let live =
        "[...document.querySelectorAll('[role=status], [aria-live], output')].map(it => it.id)";
    assert_eq!(page.eval(live).await, json!(["store", "said"]));
    page.eval(PAUSE).await;
    page.until("$('said').textContent === 'Paused: no requests are sent'")
        .await;
}

/// WCAG: 4.5 for text, 3 for other parts that must be visible.
#[tokio::test]
async fn text_and_bars_stand_out_in_light_and_dark() {
    let server = Example::start(&[]);
    let mut page = open!(server);
    let contrast = "(pairs => pairs.map(([one, other]) => {
        const style = getComputedStyle(document.documentElement)
        const [light, dark] = [one, other].map(name => {
            const [r, g, b] = style.getPropertyValue(`--${name}`).trim().replace(/^#(.)(.)(.)$/, '#$1$1$2$2$3$3')
                .match(/\\w\\w/g).map(byte => parseInt(byte, 16) / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
            return .2126 * r + .7152 * g + .0722 * b + .05
        }).sort((a, b) => b - a)
        return light / dark
    }))";
    let texts = ["ink", "quiet", "denied", "shadow"];
    let shapes = ["admitted", "elsewhere", "undecided", "edge"];
    for scheme in ["light", "dark"] {
        page.scheme(scheme).await;
        page.until(&format!(
            "matchMedia('(prefers-color-scheme: {scheme})').matches"
        ))
        .await;
        for (names, least) in [(texts, 4.5), (shapes, 3.0)] {
            for ground in ["card", "ground"] {
                let pairs = json!(names.map(|name| [name, ground]));
                let ratios = page.eval(&format!("{contrast}({pairs})")).await;
                for (name, ratio) in names.iter().zip(ratios.as_array().unwrap()) {
                    let ratio = ratio.as_f64().unwrap();
                    assert!(ratio >= least, "{scheme}: {name} on {ground}: {ratio}");
                }
            }
        }
        page.until("counts.admitted > 1").await;
        page.screenshot(scheme).await;
    }
}
