// A client of a chat service. It prints the quota of two responses, as the library go-openai reads the headers.
//
// `./test chat` builds it, with Go 1.18 or later, and runs the test that asks a server by this program.
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
	for i := 0; i < 2; i++ {
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
