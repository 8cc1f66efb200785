//! The units of policies: in the quota headers, by unit for client libraries of language models, and hidden.

use crate::prelude::*;

const BY_UNIT: HeaderStyle = HeaderStyle::X_RATE_LIMIT_BY_UNIT;

fn requests() -> Policy {
    policy("requests", "60/1h")
}

fn tokens() -> Policy {
    policy("tokens", "10000/1d,3000/1h").unit(Unit::TOKENS)
}

/// This many tokens for each request.
fn layer(each: u64) -> RateLimitLayer {
    over(empty(), each)
}

fn over(layer: RateLimitLayer, each: u64) -> RateLimitLayer {
    let cost = move |policy: &Policy| {
        if policy.counted_in() == "tokens" {
            each
        } else {
            1
        }
    };
    layer
        .limit(requests(), alice())
        .limit(tokens(), alice())
        .cost(move |_, policy| cost(policy))
}

fn around(style: HeaderStyle) -> (RateLimitLayer, RateLimitLayer) {
    let outer = empty()
        .limit(policy("everybody", "5/1h"), alice())
        .limit(policy("many", "1000000/1h").unit(Unit::TOKENS), alice());
    (outer.headers(style), layer(1).headers(BY_UNIT))
}

fn secret() -> Policy {
    policy("secret", "1/1h").hidden()
}

answers! { told;
    a_quota_names_its_unit_unless_that_is_requests:
        layer(2_500).limit(policy("pages", "9/1m").unit("pages".parse().unwrap()), alice()) =>
        r#"200 | ratelimit: "requests";r=59;t=3660, "tokens/1d";r=7500;t=87840, "tokens/1h";r=500;t=3660, "pages";r=8;t=61 | ratelimit-policy: "requests";q=60;w=3600, "tokens/1d";q=10000;qu="tokens";w=86400, "tokens/1h";q=3000;qu="tokens";w=3600, "pages";q=9;qu="pages";w=60"#;
    headers_by_unit_have_the_tightest_rule_of_each: layer(2_500).headers(BY_UNIT) =>
        "200 | x-ratelimit-limit-requests: 60 | x-ratelimit-limit-tokens: 3000 | x-ratelimit-remaining-requests: 59 | x-ratelimit-remaining-tokens: 500 | x-ratelimit-reset-requests: 1h1m0s | x-ratelimit-reset-tokens: 1h1m0s",
        "429 Denied | retry-after: 3660 | x-ratelimit-limit-requests: 60 | x-ratelimit-limit-tokens: 3000 | x-ratelimit-remaining-requests: 59 | x-ratelimit-remaining-tokens: 500 | x-ratelimit-reset-requests: 1h1m0s | x-ratelimit-reset-tokens: 1h1m0s";
    headers_by_unit_of_layers_around_each_other_have_the_tightest_of_all: around(BY_UNIT) =>
        "200 | x-ratelimit-limit-requests: 5 | x-ratelimit-limit-tokens: 3000 | x-ratelimit-remaining-requests: 4 | x-ratelimit-remaining-tokens: 2999 | x-ratelimit-reset-requests: 1h1m0s | x-ratelimit-reset-tokens: 1h1m0s";
    // Its headers must not promise more than is left here.
    headers_by_unit_of_the_inner_layer_alone_have_the_tightest_of_all: around(HeaderStyle::X_RATE_LIMIT) =>
        "200 | x-ratelimit-limit: 5 | x-ratelimit-limit-requests: 5 | x-ratelimit-limit-tokens: 3000 | x-ratelimit-remaining: 4 | x-ratelimit-remaining-requests: 4 | x-ratelimit-remaining-tokens: 2999 | x-ratelimit-reset: 3660 | x-ratelimit-reset-requests: 1h1m0s | x-ratelimit-reset-tokens: 1h1m0s";
    a_hidden_policy_of_which_little_is_left_shows_no_others:
        empty().limit(secret(), alice()).limit(requests(), alice()).headers(HeaderStyle::DRAFT_11.only_below(50)) => "200";
}

answers! { whole;
    a_hidden_policy_is_in_no_header_and_no_body:
        empty().limit(requests(), alice()).limit(secret(), alice()).headers(HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT).and(BY_UNIT)) =>
        r#"200 | ratelimit: "requests";r=59;t=3660 | ratelimit-policy: "requests";q=60;w=3600 | x-ratelimit-limit: 60 | x-ratelimit-limit-requests: 60 | x-ratelimit-remaining: 59 | x-ratelimit-remaining-requests: 59 | x-ratelimit-reset: 3660 | x-ratelimit-reset-requests: 1h1m0s | hello"#,
        r#"429 Denied | cache-control: no-store | content-type: application/problem+json | ratelimit-policy: "requests";q=60;w=3600 | retry-after: 3660 | x-ratelimit-limit-requests: 60 | x-ratelimit-remaining-requests: 59 | x-ratelimit-reset-requests: 1h1m0s | {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":[]}"#;
}

#[tokio::test]
#[ignore = "needs a program made of chat_client.go, in CHAT_CLIENTS: run ./test chat"]
async fn a_client_library_of_language_models_reads_the_headers_by_unit() {
    let folder = std::env::var("CHAT_CLIENTS").expect("CHAT_CLIENTS names a folder");
    let layer = over(support::layer(MemoryStore::new()), 500);
    let layer = layer.headers(HeaderStyle::DRAFT_11.and(BY_UNIT));
    let answer = r#"{"choices":[{"message":{"role":"assistant","content":"hello"}}]}"#;
    let chat = post(async move || ([("content-type", "application/json")], answer));
    let router = Router::new().route("/chat/completions", chat.layer(layer));
    let site = Site::start(router).await;
    let mut client = tokio::process::Command::new(format!("{folder}/chat"));
    let client = client.arg(format!("http://{}", site.address()));
    let output = client.output().await.unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "59 of 60 requests, 2500 of 3000 tokens, all in 1h0m0s\n\
         58 of 60 requests, 2000 of 3000 tokens, all in 1h0m0s\n"
    );
}

refusals! { says;
    policies_of_one_name_in_two_units_are_an_error_when_built:
        empty().limit(tokens(), alice()).try_limit(tokens().unit(Unit::CONTENT_BYTES), alice()) => "unit=tokens";
    policies_of_one_name_in_two_units_are_both_named:
        empty().limit(tokens(), alice()).try_limit(tokens().unit(Unit::CONTENT_BYTES), alice()) => "unit=content-bytes";
}
