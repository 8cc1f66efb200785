//! [`StatusOnly`]: a rejection without a body.

use http::{Response, request::Parts};

use super::{MakeRejection, Rejection, grpc_answer};

/// Responds with the status alone, and to gRPC calls like [`Grpc`](super::Grpc).
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusOnly;

#[diagnostic::do_not_recommend]
impl<B: Default> MakeRejection<B> for StatusOnly {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        grpc_answer::answer(rejection, head, B::default).unwrap_or_else(|| {
            let mut response = Response::new(B::default());
            *response.status_mut() = rejection.status();
            response
        })
    }
}
