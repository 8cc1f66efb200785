// A client of a chat service. It prints the quota of two responses, as the library go-openai reads the headers.
//
// The test that runs it is ignored by default, since it needs a program made of this file:
//
//	mkdir /tmp/chat && cp tests/http/chat_client.go /tmp/chat/main.go && cd /tmp/chat
//	go mod init chat && go get github.com/sashabaranov/go-openai && go build
//	cd - && CHAT_CLIENT=/tmp/chat/chat cargo test --all-features --test http -- --ignored client_library
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

func main() {
	config := openai.DefaultConfig("any key")
	config.BaseURL = os.Args[1]
	client := openai.NewClientWithConfig(config)
	message := openai.ChatCompletionMessage{Role: "user", Content: "hello"}
	request := openai.ChatCompletionRequest{Model: "any", Messages: []openai.ChatCompletionMessage{message}}
	for range 2 {
		response, err := client.CreateChatCompletion(context.Background(), request)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		quota := response.GetRateLimitHeaders()
		fmt.Println(quota.RemainingRequests, "of", quota.LimitRequests, "requests,",
			quota.RemainingTokens, "of", quota.LimitTokens, "tokens, all in",
			time.Until(quota.ResetTokens.Time()).Round(time.Hour))
	}
}
