//! Giving way. monoio polls timers and completions only when no task is ready,
//! and a task that wakes itself starves the others; so a long loop ends its turn
//! by waiting for a fresh task, which stands behind all that are ready now.

/// Lets every task that is ready now run first.
pub async fn give_way() {
    monoio::spawn(async {}).await;
}
