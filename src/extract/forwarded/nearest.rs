//! The entry that the nearest proxy has written, in any header that proxies add.

use http::{header::FORWARDED, request::Parts};

use super::entries::{Entries, Form};
use crate::extract::ip::{self, X_FORWARDED_FOR};

/// Returns whether a proxy has forwarded the request for a client other than the peer. Behind the PROXY protocol, the
/// peer's address is already the client's, and the nearest entry names the peer.
pub(crate) fn is_forwarded_for_other(head: &Parts) -> bool {
    ip::is_forwarded(&head.headers) && !names_peer(head)
}

fn names_peer(head: &Parts) -> bool {
    let Ok(peer) = ip::peer(&head.extensions) else {
        return false;
    };
    let headers = [
        (X_FORWARDED_FOR, Form::XForwardedFor),
        (FORWARDED, Form::Forwarded),
    ];
    headers.iter().any(|(name, form)| {
        let nearest = Entries::new(&head.headers, name, *form).next();
        let nearest = nearest.and_then(Result::ok);
        nearest.and_then(|entry| form.address(entry)) == Some(peer)
    })
}
